/*
 * The device table: everything the project does with memory that holds weights goes through one `struct device` per kind
 * of memory. `host` (memfd) is one entry; GPU drivers are others.
 *
 * A segment's life: create (mapped writable) -> fill, by `write` or through the mapping, from any number of threads -> seal
 * (unmapped, complete, read-only for ever) -> its fd is handed to the broker; readers map that fd, all segments of a device
 * in one range. All functions are thread-safe.
 *
 * Devices are named by what they are, not by their number: "host", or a GPU's UUID as "GPU-...". Numbers, which change
 * with CUDA_VISIBLE_DEVICES, exist in device_resolve alone. A GPU's primary context is used, and the context that was
 * current in the calling thread is current again when a function returns. A process that has used a GPU must not use it
 * in a forked child: no driver supports that.
 */
#ifndef IPCC_DEVICE_H
#define IPCC_DEVICE_H

#include "manifest/error.h"
#include "manifest/format.h"

#include <stdbool.h>
#include <stdint.h>

#define DEVICE_HOST	  "host"
#define DEVICE_NAME_BYTES (MANIFEST_MAX_DEVICE + 1)

/* What others open memory by that has no fd. */
struct device_handle {
	uint32_t length; /* 0: none */
	uint8_t bytes[MANIFEST_LEGACY_HANDLE_BYTES];
};

struct device_segment {
	int fd;	       /* owned; -1 when given away */
	void *address; /* writable mapping until sealed, then NULL; a GPU's address on a GPU */
	uint64_t bytes;
	bool huge;	  /* filled through the mapping, for its huge pages */
	uint64_t written; /* by `write`; atomic */
	void *state;	  /* the device's own */
	/* Of memory that stays with this process, see device_find_kept. */
	void *kept;
	struct device_handle handle;
};

enum device_access {
	DEVICE_READ,	/* enforced by page protection, a GPU's by its page tables */
	DEVICE_PRIVATE, /* copy-on-write; GPUs have none (IPCC_REFUSED) */
	DEVICE_WRITE,	/* GPU segments only: sealed host memory cannot be written */
};

/* What is to be mapped: `count` segments of one device, in their order. */
struct device_request {
	const char *device;
	const char *reader;		     /* the GPU that will read it; NULL: the device itself */
	const int *fds;			     /* stay the caller's, may be closed afterwards */
	const struct device_handle *handles; /* of kept memory, instead of fds */
	const uint64_t *bytes;
	uint32_t count;
	enum device_access access;
};

/* Mapped segments. Made by map, immutable but for suspend and resume. */
struct device_range {
	const struct device *device;
	uint32_t count;
	void **addresses; /* where each segment lies; they stay through suspend and resume */
	uint64_t *bytes;
};

struct device_memory {
	uint64_t free_bytes;
	uint64_t total_bytes;
};

/* Host memory that a device reads by itself, and what is on its way from there. */
struct device_window;

#define DEVICE_ALIAS_BYTES 16

/* One GPU, or the host. */
struct device_info {
	char name[DEVICE_NAME_BYTES];	/* "GPU-5a1f2b3c-..." */
	char alias[DEVICE_ALIAS_BYTES]; /* "cuda:0", as this process counts */
	char model[64];			/* "NVIDIA H200" */
	const struct device *device;
};

struct device {
	bool is_host; /* its addresses can be used by the processor */

	/* Keeps what using the device needs (a GPU's context) until as many closes; everything below works without, only
	 * slower when it has to set up and tear down each time. */
	int (*open)(const char *device, struct ipcc_error *err);
	void (*close)(const char *device);

	int (*memory)(const char *device, struct device_memory *memory, struct ipcc_error *err);
	/* Would `bytes` more bytes fit without driving the machine or its cgroup out of memory? IPCC_NO_MEMORY says what is
	 * free, what limits it and what to do. Called before anything is allocated. */
	int (*memory_check)(const char *device, uint64_t bytes, struct ipcc_error *err);
	/* What sizes of segments must be multiples of. */
	int (*granularity)(const char *device, uint64_t *bytes, struct ipcc_error *err);

	/* A new segment, mapped writable. The host's holds zeros, and its memory is allocated as it is filled, by whoever fills
	 * it: allocating it all beforehand, on one thread, takes longer than reading a cached file. A GPU's memory is there at
	 * once, and holds whatever it held before until `clear`. */
	int (*create)(const char *device, const char *name, uint64_t bytes, struct device_segment *segment,
		      struct ipcc_error *err);
	/* Fills a new segment with zeros. NULL: it holds them already. */
	int (*clear)(struct device_segment *segment, struct ipcc_error *err);
	/* Copies `bytes` bytes to `offset`, which must lie in the segment: the fastest way in. To a GPU it may return before
	 * they are there: read and seal wait, and report what went wrong. On the host `from` may be a mapping of a file that
	 * ends early: IPCC_FAILED with EFAULT, or SIGBUS. IPCC_NO_MEMORY: others took the memory meanwhile. */
	int (*write)(struct device_segment *segment, uint64_t offset, const void *from, uint64_t bytes,
		     struct ipcc_error *err);
	/* Copies back what was written. */
	int (*read)(const struct device_segment *segment, uint64_t offset, void *to, uint64_t bytes,
		    struct ipcc_error *err);
	/* Fills `from->count` segments of one device with those of a range of the same sizes that was mapped for that device
	 * (device_request's `reader`; IPCC_REFUSED there: it cannot be reached, go through host memory), without the
	 * processor. Waits until all bytes are there. NULL: never. */
	int (*pull)(struct device_segment *const *segments, const struct device_range *from, struct ipcc_error *err);
	/* How many of its bytes lie in huge pages, as obtained, not as asked for; before the seal. */
	uint64_t (*huge_bytes)(const struct device_segment *segment);
	/* Ends writing for ever: unmaps, allocates what was never written, seals. The fd is ready for the broker. */
	int (*seal)(struct device_segment *segment, struct ipcc_error *err);
	/* Unmaps and closes whatever is left; harmless when repeated. */
	void (*destroy)(struct device_segment *segment);

	/* Maps received segments, all or none. What a segment is, is checked before: sealed and complete on the host; on a
	 * GPU, memory of that very GPU. */
	int (*map)(const struct device_request *request, struct device_range **range, struct ipcc_error *err);
	/* Copies from a mapped segment to host memory. */
	int (*fetch)(const struct device_range *range, uint32_t segment, uint64_t offset, void *to, uint64_t bytes,
		     struct ipcc_error *err);
	/* Unmaps the memory, and keeps the addresses reserved until resume maps the same or other segments of the same
	 * sizes there. After a failed resume the range is still suspended. NULL: the device cannot. */
	int (*suspend)(struct device_range *range, struct ipcc_error *err);
	int (*resume)(struct device_range *range, const int *fds, struct ipcc_error *err);
	void (*unmap)(struct device_range *range); /* NULL is fine */

	/* Filling without a copy: the caller's memory is pinned, and the device takes from it what it is told to, while the
	 * processor does other things. A window is one thread's at a time. All NULL: the device has no windows. */
	int (*window_open)(const char *device, void *address, uint64_t bytes, struct device_window **window,
			   struct ipcc_error *err);
	/* Begins to copy `bytes` bytes at `from`, in the window, to `offset` of a segment. They must stay as they are until
	 * window_wait. */
	int (*window_send)(struct device_window *window, struct device_segment *segment, uint64_t offset,
			   const void *from, uint64_t bytes, struct ipcc_error *err);
	/* Returns when all that was sent is there, with what went wrong of it. */
	int (*window_wait)(struct device_window *window, struct ipcc_error *err);
	/* Waits, and unpins. The memory stays the caller's. NULL is fine. */
	void (*window_close)(struct device_window *window);
};

/* The entry that serves `device` ("host", a GPU's UUID), by its form alone; NULL with IPCC_NOT_FOUND when none does. */
const struct device *device_find(const char *device, struct ipcc_error *err);

/* The same for GPU memory that has no fd: its creator is its keeper, and it lives until the segment is destroyed or the
 * process ends. Readers open segment->handle; they can write to it, and have no suspend. NULL with IPCC_REFUSED: host memory
 * needs no keeper. */
const struct device *device_find_kept(const char *device, struct ipcc_error *err);

/* What a user calls a device: "host", "cuda", "cuda:0", a UUID or an unambiguous beginning of one, or "auto" (the GPU with the
 * most free memory, the host if there is no GPU). Stores its name. IPCC_NOT_FOUND says which there are. */
int device_resolve(const char *text, char name[DEVICE_NAME_BYTES], struct ipcc_error *err);

/* A GPU as this process counts: "cuda:0". IPCC_NOT_FOUND: it does not see it. */
int device_alias(const char *device, char alias[DEVICE_ALIAS_BYTES], struct ipcc_error *err);

/* All GPUs that this process sees, of all vendors; free *list. The error of a vendor without driver is no error; `why`,
 * unless NULL, then says of each vendor why it has none. */
int device_list(struct device_info **list, uint32_t *count, struct ipcc_error *why, struct ipcc_error *err);

#endif
