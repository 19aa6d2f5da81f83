/*
 * The device table: everything the project does with memory that holds weights goes through one `struct device` per kind
 * of memory. `host` (memfd) is one entry; GPU drivers are others.
 *
 * A segment's life: create (mapped writable) -> fill, by `write` or through the mapping, from any number of threads -> seal
 * (unmapped, complete, read-only for ever) -> its fd is handed to the broker; a reader maps that fd. All functions are
 * thread-safe.
 */
#ifndef IPCC_DEVICE_H
#define IPCC_DEVICE_H

#include "manifest/error.h"

#include <stdbool.h>
#include <stdint.h>

#define DEVICE_HOST "host"

struct device_segment {
	int fd;	       /* owned; -1 when given away */
	void *address; /* writable mapping until sealed, then NULL */
	uint64_t bytes;
	bool huge;	  /* filled through the mapping, for its huge pages */
	uint64_t written; /* by `write`; atomic */
};

struct device {
	/* Would `bytes` more bytes fit without driving the machine or its cgroup out of memory? IPCC_NO_MEMORY says what is
	 * free, what limits it and what to do. Called before anything is allocated. */
	int (*memory_check)(const char *device, uint64_t bytes, struct ipcc_error *err);
	/* A new segment of zeros, mapped writable. Its memory is allocated as it is filled, by whoever fills it: allocating
	 * it all beforehand, on one thread, takes longer than reading a cached file. */
	int (*create)(const char *device, const char *name, uint64_t bytes, struct device_segment *segment,
		      struct ipcc_error *err);
	/* Copies `bytes` bytes to `offset`, which must lie in the segment: the fastest way in. `from` may be a mapping of a
	 * file that ends early: IPCC_FAILED with EFAULT, or SIGBUS. IPCC_NO_MEMORY: others took the memory meanwhile. */
	int (*write)(struct device_segment *segment, uint64_t offset, const void *from, uint64_t bytes,
		     struct ipcc_error *err);
	/* Copies back what was written. */
	int (*read)(const struct device_segment *segment, uint64_t offset, void *to, uint64_t bytes,
		    struct ipcc_error *err);
	/* How many of its bytes lie in huge pages, as obtained, not as asked for; before the seal. */
	uint64_t (*huge_bytes)(const struct device_segment *segment);
	/* Ends writing for ever: unmaps, allocates what was never written, seals. The fd is ready for the broker. */
	int (*seal)(struct device_segment *segment, struct ipcc_error *err);
	/* Unmaps and closes whatever is left; harmless when repeated. */
	void (*destroy)(struct device_segment *segment);

	/* Maps a received segment read-only, or copy-on-write if `private_copy`. The fd stays the caller's and may be
	 * closed afterwards. */
	int (*map)(const char *device, int fd, uint64_t bytes, bool private_copy, void **address, struct ipcc_error *err);
	void (*unmap)(void *address, uint64_t bytes);
};

/* The entry that serves `device` ("host", a GPU's UUID); NULL with IPCC_NOT_FOUND when none does. */
const struct device *device_find(const char *device, struct ipcc_error *err);

#endif
