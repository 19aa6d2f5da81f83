/*
 * ipc_cache.h - the client library of ipc-cache: attach to model weights that a broker holds, and publish them.
 *
 *	struct ipcc_client *client;
 *	struct ipcc_model *model;
 *	struct ipcc_tensor t;
 *	struct ipcc_error err;
 *
 *	if (ipcc_connect(&client, NULL, &err) ||
 *	    ipcc_attach(client, &(struct ipcc_attach_options){.model = "/models/minilm"}, &model, &err) ||
 *	    ipcc_map(model, 0, &err) || ipcc_find(model, "embeddings.weight", &t, &err))
 *		return complain(err.message);
 *	const float *weights = ipcc_address(model, &t);
 *
 * Errors: every function that takes a `struct ipcc_error *` (may be NULL) returns 0 or a positive enum ipcc_code and says
 * in `message` what was wrong and what to do. Outputs are untouched on failure.
 *
 * Devices: segments live on the host or on a GPU, named by its UUID ("GPU-5a1f2b3c-..."). A GPU's driver is looked for when
 * a GPU is used, and stays loaded; its primary context is used, and the calling thread's current context is left alone.
 *
 * Threads: there is no global state but a loaded GPU driver and, if asked for, ipcc_faults(). A client may be used by several
 * threads, one request at a time (calls wait for each other); ipcc_cancel() may be called at any moment. A model is read-only
 * after ipcc_map() and may be read by any number of threads. Freeing an object while another thread uses it is the caller's
 * error.
 *
 * Fork: the connection, and with it the lease, is shared with a forked child until both have closed it. A child must not
 * talk on it; host mappings stay valid in both. GPU drivers do not survive a fork.
 */
#ifndef IPC_CACHE_H
#define IPC_CACHE_H

#include "manifest/error.h"
#include "manifest/views.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IPCC_KEY_ID_CHARS 33 /* 32 hexadecimal digits and a NUL */
#define IPCC_WAIT_FOREVER (-1)

/* The library's version, as "0.1.0". */
const char *ipcc_version(void);
/* A code's short name ("not-found"); never NULL. */
const char *ipcc_code_name(int code);

/* The safetensors name of an element type ("BF16"), or NULL; and the bits of one element (4, 6, 8, ... 64), or 0. */
const char *ipcc_dtype_name(uint32_t dtype);
uint32_t ipcc_dtype_bits(uint32_t dtype);

/* ---- connection ------------------------------------------------------------------------------------------------- */

struct ipcc_client;

struct ipcc_client_options {
	/* The broker's directory. NULL: $IPC_CACHE_DIR, else /run/ipc-cache if it exists, else
	 * /tmp/vllm_ipc_cache_uid_<UID>. */
	const char *dir;
	/* How long any one call may take, in ms, waiting that was asked for (wait_ms) not counted. 0: 10,000.
	 * IPCC_WAIT_FOREVER: no limit. */
	int timeout_ms;
	/* Trust a broker of this uid besides the caller's own and root's; only with trust_uid_set. Otherwise
	 * $IPC_CACHE_TRUST_UID, if set. */
	uid_t trust_uid;
	bool trust_uid_set;
};

/* Connects to the broker and authenticates it: the directory must not be a link nor writable by others, and the peer must
 * be the caller's uid, root or the trusted uid. `options` may be NULL.
 * IPCC_NO_BROKER: nobody listens; IPCC_REFUSED: not to be trusted, or the broker does not take this user. */
int ipcc_connect(struct ipcc_client **client, const struct ipcc_client_options *options, struct ipcc_error *err);
/* Ends the connection, and with it the lease, and a publication that is uncommitted or kept. Mapped models stay mapped; a kept
 * one's memory may be freed by its keeper from then on. NULL is fine. */
void ipcc_close(struct ipcc_client *client);
/* From any thread, or a signal handler: the call in flight and every later one return IPCC_CANCELED. Only ipcc_close() can
 * follow. Allocating a segment and hashing one are finished first. */
void ipcc_cancel(struct ipcc_client *client);
/* The connected socket's fd, for poll(): readable between calls means that the broker has something to say or is gone. */
int ipcc_fd(const struct ipcc_client *client);

/* ---- devices ---------------------------------------------------------------------------------------------------- */

#define IPCC_DEVICE_CHARS 64

/* The name of what a user calls a device: "host", "cuda:0" (as this process counts), "auto" (the GPU with the most free
 * memory, the host if there is none), a UUID or an unambiguous beginning of one. IPCC_NOT_FOUND says which there are. */
int ipcc_device(const char *text, char name[IPCC_DEVICE_CHARS], struct ipcc_error *err);

/* ---- attaching -------------------------------------------------------------------------------------------------- */

enum ipcc_verify {
	IPCC_VERIFY_STAT = 0, /* size, device, inode, mtime, ctime of every source file; unknown is refused */
	IPCC_VERIFY_HASH,     /* where stat cannot tell, read the files and compare content hashes */
	IPCC_VERIFY_NONE,     /* trust whoever published */
};

struct ipcc_attach_options {
	/* Which model: a path (what contains '/', "." or ".."; compared by its real path), the name given at load, or the
	 * first 4 or more digits of the key's id. May be NULL when `fields` are given. */
	const char *model;
	/* Key fields that must match. With `exact` the key must have no others. */
	const struct ipcc_field *fields;
	uint32_t field_count;
	bool exact;
	/* Wait up to this many ms for a model that is loading or not there yet. 0: do not wait. IPCC_WAIT_FOREVER. */
	int wait_ms;
	/* Folder (or file) that holds the caller's own source files, compared with the manifest before anything is handed
	 * over. NULL: `model` if it is a path, else the sources are not compared. */
	const char *sources;
	enum ipcc_verify verify;
};

struct ipcc_model;

/* How the source files compared. */
enum ipcc_source_state {
	IPCC_SOURCES_UNCHECKED = 0,
	IPCC_SOURCES_SAME,     /* by metadata */
	IPCC_SOURCES_VERIFIED, /* by content hash */
};

/* Attaches: one round trip, O(segments). Verifies seals and checksum of the manifest and compares the source files; maps
 * nothing yet. The connection is the lease until ipcc_detach() or ipcc_close(); it carries one lease at a time.
 * IPCC_NOT_FOUND (the message lists what is there), IPCC_MISMATCH (field, expected, got), IPCC_UNKNOWN (sources cannot be
 * told by metadata; use IPCC_VERIFY_HASH), IPCC_TIMEOUT. Free with ipcc_model_free(). */
int ipcc_attach(struct ipcc_client *client, const struct ipcc_attach_options *options, struct ipcc_model **model,
		struct ipcc_error *err);

enum ipcc_map_flags {
	IPCC_MAP_PRIVATE = 1, /* writable copy-on-write; the shared bytes stay as they are */
};

/* Maps all segments, read-only by page protection (a write is a SIGSEGV of the writer alone). Once per model.
 * A GPU's segments are mapped on the GPU that the manifest names, whatever CUDA_VISIBLE_DEVICES says, side by side, and
 * read-only by the GPU's page tables (a kernel's write is an illegal memory access of its process alone); the addresses
 * are the GPU's. A kept model's (facts.kept) lie wherever the driver puts them, and are writable: writing to them changes what
 * everybody reads. Its keeper cannot map it itself, and ipcc_map needs the lease.
 * IPCC_NOT_FOUND: this process does not see that GPU, or the keeper has ended; IPCC_MISMATCH: a segment is another GPU's
 * memory. */
int ipcc_map(struct ipcc_model *model, unsigned flags, struct ipcc_error *err);

/* Unmaps a GPU's memory and keeps the addresses; ipcc_resume() maps the same segments at the same addresses again. The
 * lease, if held, stays. IPCC_REFUSED for host memory and kept models. */
int ipcc_suspend(struct ipcc_model *model, struct ipcc_error *err);
int ipcc_resume(struct ipcc_model *model, struct ipcc_error *err);

/* Copies from a mapped segment to memory of this process, wherever the segment is. */
int ipcc_read(const struct ipcc_model *model, uint32_t segment, uint64_t offset, void *to, uint64_t bytes,
	      struct ipcc_error *err);

/* A handler of SIGSEGV that says on standard error which tensor of which watched model a forbidden write hit, and then does
 * what the handler before it does, or lets the process die as it would have. For the whole process; off: restores that
 * handler, IPCC_BUSY when another one was installed since. A GPU's faults are not signals. */
int ipcc_faults(bool on, struct ipcc_error *err);
/* Names a mapped model's tensors in such messages, until it is unmapped. At most 256 models. */
int ipcc_fault_watch(struct ipcc_model *model, struct ipcc_error *err);

/* Ends the lease; manifest and mappings stay valid, but for those of a kept model, which is unmapped: its keeper may free the
 * memory from then on. Harmless when repeated. */
int ipcc_detach(struct ipcc_model *model, struct ipcc_error *err);

/* Is the lease still good? Without blocking. */
enum ipcc_lease {
	IPCC_LEASE_HELD,
	IPCC_LEASE_EVICTED, /* the broker dropped the model by force; the mappings stay valid, free them soon */
	IPCC_LEASE_ENDED,   /* detached, or the broker is gone; the mappings stay valid */
	/* A kept model's keeper ended, or is about to since the broker is gone. Its memory goes with it, mapped or not, and what the mappings hold is undefined from then
	 * on: use nothing of it any more, and free the model. */
	IPCC_LEASE_LOST,
};
enum ipcc_lease ipcc_lease_state(struct ipcc_model *model);

/* Ends the lease if it is still held, unmaps everything, frees. Where ipcc_dlpack() gave tensors that still live, unmapping
 * and freeing wait for the last of them. NULL is fine. */
void ipcc_model_free(struct ipcc_model *model);

/* What was attached. Strings and pointers live as long as the model. */
struct ipcc_model_facts {
	const char *name;
	char key_id[IPCC_KEY_ID_CHARS];
	bool kept;	     /* the publisher holds the memory, and the model ends with it */
	uint64_t id;	     /* of this broker process */
	uint64_t generation; /* larger is newer */
	uint64_t created_ns; /* CLOCK_REALTIME */
	uid_t owner_uid;
	pid_t publisher_pid;
	uint64_t bytes; /* all segments together */
	uint32_t segments;
	uint32_t tensors;
	uint32_t fields;
	uint32_t sources;
	uint32_t attributes;
	enum ipcc_source_state source_state;
	const void *manifest; /* the raw bytes, ipc-cache-manifest(5) */
	uint64_t manifest_bytes;
};
void ipcc_model_facts(const struct ipcc_model *model, struct ipcc_model_facts *facts);

/* Entries by number; IPCC_NOT_FOUND beyond the last, IPCC_INVALID for an entry that points outside the manifest. */
int ipcc_tensor(const struct ipcc_model *model, uint32_t i, struct ipcc_tensor *tensor, struct ipcc_error *err);
int ipcc_segment(const struct ipcc_model *model, uint32_t i, struct ipcc_segment *segment, struct ipcc_error *err);
int ipcc_source(const struct ipcc_model *model, uint32_t i, struct ipcc_source *source, struct ipcc_error *err);
int ipcc_attribute(const struct ipcc_model *model, uint32_t i, struct ipcc_attribute *attribute,
		   struct ipcc_error *err);
int ipcc_field(const struct ipcc_model *model, uint32_t i, struct ipcc_field *field, struct ipcc_error *err);

/* A tensor by name, through the hash index: nanoseconds. IPCC_NOT_FOUND. */
int ipcc_find(const struct ipcc_model *model, const char *name, struct ipcc_tensor *tensor, struct ipcc_error *err);
/* Where a segment, or a tensor got from this model, is mapped; NULL before ipcc_map(). A zero-size tensor has an address
 * that must not be read. */
void *ipcc_segment_address(const struct ipcc_model *model, uint32_t segment);
void *ipcc_address(const struct ipcc_model *model, const struct ipcc_tensor *tensor);

/* Kinds of devices in DLPack. */
enum ipcc_dlpack_device {
	IPCC_DLPACK_CPU = 1,
	IPCC_DLPACK_CUDA = 2,
	IPCC_DLPACK_ROCM = 10,
};
/* Where a segment lies as DLPack counts: the kind, and the GPU's number in this process (0 on the host). MetaX's GPUs
 * are called CUDA's, as their frameworks do. IPCC_NOT_FOUND: this process does not see that GPU. */
int ipcc_dlpack_device(const struct ipcc_model *model, uint32_t segment, enum ipcc_dlpack_device *kind, int *number,
		       struct ipcc_error *err);
/* Makes a DLPack tensor (https://dmlc.github.io/dlpack) over bytes of a mapped model: `tensor` may be one of its tensors or
 * any view that lies in a segment; name, flags and bytes are not used. `versioned`: *managed is a DLManagedTensorVersioned
 * of version 1.1, marked read-only unless it is mapped privately; else a DLManagedTensor, which cannot be marked.
 * Whoever takes it calls its deleter, once, from any thread; the mapping stays until then, even if the model is freed before.
 * IPCC_USAGE: the model is not mapped, or the view leaves its segment. */
int ipcc_dlpack(struct ipcc_model *model, const struct ipcc_tensor *tensor, bool versioned, void **managed,
		struct ipcc_error *err);

/* For Python: the destructor of a PyCapsule that holds such a tensor. One that nobody has taken ("dltensor",
 * "dltensor_versioned") is deleted with it. */
void ipcc_capsule_drop(void *capsule);

#define IPCC_VIEW_DTYPES 32
#define IPCC_VIEW_NONE	 UINT32_MAX

/* For Python and torch: what ipcc_views() works with. */
struct ipcc_views {
	/* Torch's aoti_torch__reinterpret_tensor and aoti_torch_delete_tensor_object; Python's PyCapsule_New,
	 * PyUnicode_DecodeUTF8 and PyList_SetItem. */
	int (*view)(void *base, int64_t rank, const int64_t *shape, const int64_t *strides, int64_t offset,
		    void **view);
	int (*discard)(void *view);
	void *(*capsule)(void *pointer, const char *name, void (*destructor)(void *));
	void *(*text)(const char *text, ssize_t bytes, const char *errors);
	int (*set)(void *list, ssize_t i, void *item);
	/* bases[(set * segments + segment) * IPCC_VIEW_DTYPES + dtype]: torch's tensor over the segment, of that type;
	 * NULL: types that torch does not know. Sets beyond the first are over the caller's copies of parts of segments:
	 * the part of `set * segments + segment` begins at byte begins[...] of the segment, and all tensors whose
	 * sets[...] it is lie in it, which is not checked. NULL: all begin at 0; all are of the first set. */
	void *const *bases;
	const uint64_t *begins;
	const uint8_t *sets;
	void *list;	  /* out: a Python list with a place for each tensor, for the views' capsules */
	void *names;	  /* out: another one, for all tensors' names */
	uint32_t *places; /* out, for each tensor: the place of its view in the list, or IPCC_VIEW_NONE */
	uint32_t made;	  /* in: 0; out: how many places are used */
};

/* Makes views of all tensors but those of 0 bytes and of types without a base; an alias with its owner's very view gets
 * the owner's. The caller holds Python's lock, and takes the views out of the capsules, also after an error. */
int ipcc_views(const struct ipcc_model *model, struct ipcc_views *views, struct ipcc_error *err);

/* Re-hashes mapped segment `i` and compares with the manifest. IPCC_MISMATCH names the first damaged block and its
 * offset; IPCC_NOT_FOUND when the publisher gave no hashes. */
int ipcc_verify_segment(const struct ipcc_model *model, uint32_t i, struct ipcc_error *err);

/* For tracing (ipc-cache-probes(7)): tells whoever listens that the caller did `phase` with the model ("skeleton", "bind",
 * "post-process") from start_ns to end_ns of CLOCK_MONOTONIC. Costs next to nothing when nobody does. */
void ipcc_probe_phase(const struct ipcc_model *model, const char *phase, uint64_t start_ns, uint64_t end_ns);

/* ---- publishing ------------------------------------------------------------------------------------------------- */

struct ipcc_publish_options {
	const char *name; /* display name; NULL: none */
	const struct ipcc_field *fields;
	uint32_t field_count;
	const char *device; /* where the segments live: "host" (NULL: the same), or a GPU's name from ipcc_device() */
	const uint64_t *segment_bytes; /* a GPU's are rounded up, to multiples of 2 MiB on NVIDIA's */
	uint32_t segment_count;
	enum ipcc_visibility visibility;
	gid_t visible_gid;
	/* While another publisher loads the same key: wait up to this many ms for it. 0: IPCC_BUSY at once. */
	int wait_ms;
	/* A resident model of the same key is replaced at the commit: it takes no new attach and goes with its last
	 * lease. Otherwise IPCC_EXISTS. */
	bool replace;
	/* The caller will write every byte, as ipcc_publish_copy() does: a GPU's segments are not cleared first. What is
	 * left out holds whatever that memory held before. */
	bool overwritten;
	/* GPU memory without fds, for devices whose memory cannot be exported as such: the segments are ordinary memory of this
	 * process, shared by legacy IPC handles, and the model lives as long as this process keeps it: see ipcc_publish_keep().
	 * IPCC_REFUSED on the host. */
	bool keep;
	/* The caller makes the segments one by one with ipcc_publish_create(), as it frees what it fills them from. */
	bool create_later;
};

struct ipcc_publish;

/* Claims the key with the broker, then creates the segments, mapped writable at ipcc_publish_address(); they hold zeros
 * (unless `overwritten`), and their memory is allocated as they are filled. The connection is the claim: when it ends before
 * the commit, nothing is left. One publication per client at a time.
 * IPCC_EXISTS, IPCC_BUSY (names the other publisher), IPCC_NO_MEMORY (before anything is allocated), IPCC_REFUSED. */
int ipcc_publish_begin(struct ipcc_client *client, const struct ipcc_publish_options *options,
		       struct ipcc_publish **publish, struct ipcc_error *err);
/* Creates a segment of a publication that was begun with `create_later`; all must be there at the commit. A model moves
 * on one GPU in this way without being there twice. IPCC_NO_MEMORY: the device has no room for this segment;
 * IPCC_USAGE: there is no such segment, or it exists. From one thread. */
int ipcc_publish_create(struct ipcc_publish *publish, uint32_t segment, struct ipcc_error *err);
/* On a GPU that address is the GPU's. NULL: not created yet. */
void *ipcc_publish_address(const struct ipcc_publish *publish, uint32_t segment);
/* Fills all segments from an attached model of as many that are no larger, and takes over their hashes where the sizes are
 * equal: from GPU to GPU directly where they reach each other, else through host memory. The model need not be mapped. */
int ipcc_publish_copy(struct ipcc_publish *publish, struct ipcc_model *model, struct ipcc_error *err);

/* Copies `bytes` bytes to `offset` of a segment; on host memory nearly twice as fast as through the mapping, since fresh
 * pages are neither zeroed nor faulted in. From any thread, for ranges that do not overlap. IPCC_USAGE: outside of the
 * segment; IPCC_NO_MEMORY: others took the memory meanwhile. */
int ipcc_publish_write(struct ipcc_publish *publish, uint32_t segment, uint64_t offset, const void *from,
		       uint64_t bytes, struct ipcc_error *err);
/* Copies back what was written, before the commit. */
int ipcc_publish_read(const struct ipcc_publish *publish, uint32_t segment, uint64_t offset, void *to, uint64_t bytes,
		      struct ipcc_error *err);
/* How many bytes of all segments lie in huge pages, as obtained, not as asked for; before the commit. */
uint64_t ipcc_publish_huge_bytes(const struct ipcc_publish *publish);

/* What the manifest will say; all strings and arrays are copied. */
int ipcc_publish_tensor(struct ipcc_publish *publish, const struct ipcc_tensor *tensor, struct ipcc_error *err);
int ipcc_publish_source(struct ipcc_publish *publish, const struct ipcc_source *source, struct ipcc_error *err);
/* What a file is as a source: its status, and with `hash` its content hash, for which it is read. The name is the last
 * part of `path`, as a pointer into it; set another one if the model is a folder. *unsettled_ns: so long after this call
 * must the file be looked at again for its times to prove that it was not written since; 0: they do. IPCC_INVALID: it is no
 * regular file, or changed while it was read. */
int ipcc_source_file(const char *path, bool hash, struct ipcc_source *source, uint64_t *unsettled_ns,
		     struct ipcc_error *err);
int ipcc_publish_attribute(struct ipcc_publish *publish, const struct ipcc_attribute *attribute,
			   struct ipcc_error *err);
/* Block hashes of a segment that the caller computed while filling: (bytes + 4 MiB - 1) / 4 MiB times 16 bytes. A segment
 * without them is hashed at the commit. */
int ipcc_publish_hashes(struct ipcc_publish *publish, uint32_t segment, const uint8_t (*hashes)[16], uint32_t count,
			struct ipcc_error *err);

/* Hashes what was not hashed, unmaps and seals the segments, hands them and the manifest over. On success the model is
 * resident and independent of this process, unless it is to be kept; id and generation are stored unless NULL. Free the
 * publication in any case. */
int ipcc_publish_commit(struct ipcc_publish *publish, uint64_t *id, uint64_t *generation, struct ipcc_error *err);
/* After the commit of a publication with `keep`: waits until the memory is wanted no longer, then free the publication, which
 * frees it. Meanwhile the client, the publication and the GPU's context must stay; the process must not fork without exec,
 * or the broker would not see its end.
 * 0: the model was evicted or replaced, and its last lease has ended. IPCC_CANCELED (ipcc_cancel(), as from a signal handler):
 * freeing the publication ends the model at once, and its holders are told (IPCC_LEASE_LOST). IPCC_NO_BROKER: the broker is
 * gone, and with it the model. The process's death at any moment ends the model as IPCC_CANCELED does. */
int ipcc_publish_keep(struct ipcc_publish *publish, struct ipcc_error *err);

/* Where the time of a publication went. */
enum ipcc_phase {
	IPCC_PHASE_CLAIM,  /* the broker's answer to the claim */
	IPCC_PHASE_OPEN,   /* setting up the GPU's context */
	IPCC_PHASE_CREATE, /* the segments, cleared unless `overwritten` */
	IPCC_PHASE_MAP,	   /* ipcc_publish_copy(): mapping the segments of the model, and unmapping them */
	IPCC_PHASE_BYTES,  /* ipcc_publish_copy(): the bytes */
	IPCC_PHASE_SEAL,   /* hashing what was not hashed, unmapping, sealing */
	IPCC_PHASE_COMMIT, /* handing segments and manifest over */
	IPCC_PHASES,
};
/* Nanoseconds so far; what did not happen took 0. */
uint64_t ipcc_publish_phase_ns(const struct ipcc_publish *publish, enum ipcc_phase phase);

/* Frees; an uncommitted publication is given up, and a kept model with it unless it is gone already (its connection ends: the
 * client can only be closed). NULL is fine. */
void ipcc_publish_free(struct ipcc_publish *publish);

/* ---- looking and managing --------------------------------------------------------------------------------------- */

struct ipcc_holder {
	pid_t pid;
	uid_t uid;
	uint64_t since_ns; /* CLOCK_REALTIME */
};

struct ipcc_listing {
	uint64_t id;
	uint64_t generation;	     /* 0 while loading */
	enum ipcc_model_state state; /* views.h, as all enumerations that travel */
	bool kept;		     /* by publisher_pid, as in struct ipcc_model_facts */
	const char *name;
	char key_id[IPCC_KEY_ID_CHARS];
	uid_t owner_uid;
	pid_t publisher_pid;
	enum ipcc_visibility visibility;
	gid_t visible_gid;
	uint64_t created_ns; /* of the commit; of the claim while loading */
	uint64_t bytes;	     /* promised while loading */
	uint32_t segments;
	uint32_t tensors;
	uint32_t field_count;
	const struct ipcc_field *fields;
	uint32_t leases;       /* all of them */
	uint32_t holder_count; /* listed in `holders`, oldest first; at most 64 */
	const struct ipcc_holder *holders;
};

struct ipcc_list {
	uint32_t count;
	struct ipcc_listing *models; /* by id */
};

/* The models that the caller may see; broker's owner and root see all. One allocation; free with ipcc_list_free(). */
int ipcc_list(struct ipcc_client *client, struct ipcc_list **list, struct ipcc_error *err);
void ipcc_list_free(struct ipcc_list *list);

/* `model` as in ipcc_attach_options, and fields likewise. A model that is loading cannot be evicted: end its publisher.
 * `draining` (may be NULL) is set when leases are left. */
int ipcc_evict(struct ipcc_client *client, const char *model, const struct ipcc_field *fields, uint32_t field_count,
	       enum ipcc_evict_mode mode, int wait_ms, bool *draining, struct ipcc_error *err);
/* Which model the last ipcc_evict() of this client that succeeded was about: its id in ipcc_list(). 0: there was none. */
uint64_t ipcc_evicted_id(const struct ipcc_client *client);

/* One round trip. */
int ipcc_ping(struct ipcc_client *client, struct ipcc_error *err);

struct ipcc_stat {
	uint8_t instance[16];
	pid_t pid;
	uid_t uid;
	char version[32];
	uint64_t uptime_ns;
	uint64_t connections; /* open now */
	uint64_t models;      /* ready or draining */
	uint64_t loading;
	uint64_t leases;
	uint64_t bytes; /* of all models, promised ones included */
	uint64_t fds;	/* held for models */
	uint64_t fd_limit;
	/* Since the start. */
	uint64_t accepted;
	uint64_t refused; /* connections turned away, and requests answered with an error */
	uint64_t attaches;
	uint64_t mismatches;
	uint64_t commits;
	uint64_t evictions;
};
int ipcc_stat(struct ipcc_client *client, struct ipcc_stat *stat, struct ipcc_error *err);

#ifdef __cplusplus
}
#endif
#endif
