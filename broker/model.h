/*
 * One model of the broker, from the claim of its key to the end of its last lease.
 *
 *	LOADING   claimed by a connection that fills it; no one can attach; goes with that connection
 *	READY     attachable
 *	DRAINING  not attachable; goes with its last lease. `dropped`: evicted by force, the fds are closed already, the
 *	          charge stays, since memory that somebody maps is not free
 *
 * The memory of a kept model is its keeper's: the broker has no segment fds, and the model goes with the keeper's connection,
 * in whatever state. It is the keeper's until the model is gone: only then is the keeper told to free it.
 *
 * Invariant: what would have to outlive the process is in the fds of a READY model and in the journal, nothing else;
 * and, of a kept model, in its keeper.
 */
#ifndef IPCC_BROKER_MODEL_H
#define IPCC_BROKER_MODEL_H

#include "broker/account.h"
#include "manifest/key.h"
#include "manifest/views.h"

#include <sys/queue.h>
#include <sys/stat.h>

struct conn;

struct model_segment {
	int fd; /* -1 until handed over, and when dropped */
	uint64_t bytes;
	dev_t device; /* of the file; 0 and 0 for a GPU's */
	ino_t inode;
};

struct model {
	TAILQ_ENTRY(model) link;
	uint64_t id;	     /* of this broker process, never reused */
	uint64_t generation; /* 0 while loading */
	uint64_t created_ns; /* CLOCK_REALTIME of claim, then of the manifest's stamp */
	uint32_t state;	     /* enum ipcc_model_state */
	bool dropped;
	bool kept;

	struct account *account; /* the owner; charged */
	pid_t publisher_pid;
	uint64_t publisher_conn; /* number of the connection that published it */
	uint32_t visibility;
	gid_t visible_gid;
	char *name;
	struct key key;

	uint64_t bytes;
	uint32_t segment_count;
	uint32_t fd_count; /* of segments that the broker holds, or is to get: all, or none of a kept model */
	struct model_segment *segments;
	int manifest_fd;	 /* sealed and stamped, or -1 */
	uint64_t manifest_bytes; /* charged */
	uint32_t tensor_count;

	struct conn *publisher;		     /* while LOADING */
	struct conn *keeper;		     /* of a kept model, from its COMMIT on */
	TAILQ_HEAD(lease_list, conn) leases; /* oldest first */
	uint32_t lease_count;
};

/* Charged to nobody yet; takes over `key` (emptied). NULL: no memory. */
struct model *model_new(struct key *key, const char *name, size_t name_bytes, const uint64_t *segment_bytes,
			uint32_t segment_count, bool kept);
void model_free(struct model *model);

/* Gives the fds to the reaper. */
void model_drop_fds(struct model *model);

/* "uid 1000's model minilm (key 1a2b3c4d)", for messages. */
#define MODEL_LABEL_BYTES 160
const char *model_label(const struct model *model, char label[MODEL_LABEL_BYTES]);

#endif
