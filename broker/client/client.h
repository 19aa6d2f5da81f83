/* Inside the client library only: the connection, one request at a time over it, and the model. */
#ifndef IPCC_CLIENT_H
#define IPCC_CLIENT_H

#include "broker/client/ipc_cache.h"
#include "broker/link/wire.h"
#include "manifest/reader.h"

#include <pthread.h>
#include <stdatomic.h>

#define EXPORT __attribute__((visibility("default")))

struct ipcc_client {
	int socket_fd;
	int cancel_fd; /* an eventfd, written once and never read: it stays readable */
	int timeout_ms;
	pthread_mutex_t lock; /* one request at a time */
	uint32_t last_request;
	atomic_bool canceled;
	atomic_bool broken; /* the connection is over, or out of step */
	uint8_t instance[16];
	atomic_bool lease_taken;   /* an attach is going on, or its lease is held */
	struct ipcc_model *leased; /* the model whose lease this connection is, or NULL */
	struct ipcc_publish *publishing;
	uint64_t evicted_id; /* by the last ipcc_evict */
	/* Events that came. */
	atomic_bool evicted;
	atomic_bool lost;     /* the keeper of the leased model ended */
	atomic_bool released; /* the model that is kept over this connection is gone */
};

struct ipcc_model {
	struct ipcc_client *client; /* NULL once the lease is over */
	atomic_uint users;	    /* its owner, and every DLPack tensor over it; the last one unmaps */
	struct manifest manifest;
	struct ipcc_model_facts facts;
	int *segment_fds; /* facts.segments of them; the host's are -1 once mapped, GPUs' are kept for ipcc_resume */
	struct mapping {
		void *address;
		uint64_t bytes;
		struct device_range *range; /* in which it lies ... */
		uint32_t place;		    /* ... as this one of its segments */
	} * mappings;
	/* One for each run of segments of the same device. */
	struct device_range **ranges;
	uint32_t range_count;
	unsigned map_flags;
	bool watched; /* it has a slot in fault.c */
	bool suspended;
	bool mapped;
};

/* One request and its reply. */
struct call {
	struct message message; /* the request, then the reply's bytes */
	struct cursor body;	/* of the reply */
	struct wire_fds fds;	/* of the reply; call_end closes what was not taken */
};

/* Begins a request of that type; append its body to call->message. */
void call_start(struct call *call, enum message_type type);
/* Sends it with `fds`, and waits for the reply at most timeout_ms + wait_ms. The reply's code is returned, with its
 * error. Takes the client's lock. */
int call_run(struct call *call, struct ipcc_client *client, const int *fds, unsigned fd_count, int wait_ms,
	     struct ipcc_error *err);
void call_end(struct call *call);
/* IPCC_PROTOCOL unless the reply was read to its end, without surplus fds. */
int call_finished(const struct call *call, unsigned fds_expected, struct ipcc_error *err);

/* Reads what the broker sent unasked, without blocking, and notes it. Takes the client's lock. */
void call_poll(struct ipcc_client *client);
/* Until the broker says something, or is gone, or IPCC_CANCELED. Without the lock: others may use the client meanwhile. */
int call_wait(struct ipcc_client *client, struct ipcc_error *err);

/* IPCC_NOT_FOUND beyond the last entry: the caller's mistake, not the manifest's. */
int model_check_number(const struct ipcc_model *model, enum manifest_section_id section, uint32_t i, const char *what,
		       struct ipcc_error *err);
/* map.c: unmaps everything that is mapped. */
void model_unmap(struct ipcc_model *model);
/* fault.c: before it is unmapped. */
void fault_forget(struct ipcc_model *model);
/* attach.c: one user less; the last one unmaps and frees. */
void model_drop(struct ipcc_model *model);

/* Reads and hashes all blocks of `bytes` bytes, which are the processor's at `address`, or are fetched. Returns the hash
 * over them in *over. */
struct fetched {
	const void *address; /* NULL: fetch */
	uint64_t bytes;
	int (*fetch)(void *context, uint64_t offset, void *to, uint64_t bytes, struct ipcc_error *err);
	void *context;
};
int fetched_hash(const struct fetched *from, struct hash128 *blocks, struct hash128 *over, struct ipcc_error *err);

/* Ends the connection; the client can only be closed from then on. */
void client_hang_up(struct ipcc_client *client);
/* The same, and waits until the broker knows, at most timeout_ms. */
void client_leave(struct ipcc_client *client);
/* The client is closed under a publication that is unfinished or kept. */
void publish_orphan(struct ipcc_publish *publish);

/* What the user called a model: the selector's parts. */
struct target {
	const char *text; /* a name or key prefix, or NULL */
	char *path;	  /* the real path, or NULL; owned */
	struct key key;	  /* the wanted fields, `model` among them when it is a path */
};
int target_init(struct target *target, const char *model, const struct ipcc_field *fields, uint32_t field_count,
		struct ipcc_error *err);
void target_fini(struct target *target);

/* Compares the sources of a manifest with the files under `root`: a folder, or the only source itself under any name. */
int sources_compare(const struct manifest *m, const char *root, enum ipcc_verify verify, const atomic_bool *cancel,
		    enum ipcc_source_state *state, struct ipcc_error *err);

/* -1 (for ever) stays; wire form of a wait. */
uint32_t wire_wait(int wait_ms);

#endif
