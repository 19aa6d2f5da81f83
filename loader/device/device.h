/*
 * The device table: everything the project does with memory that holds weights goes through one `struct device` per kind
 * of memory. `host` (memfd) is one entry; GPU drivers are others.
 *
 * A segment's life: create (memory exists and is mapped writable) -> fill -> seal (unmapped, read-only for ever) -> its
 * fd is handed to the broker; a reader maps that fd. All functions are thread-safe.
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
};

struct device {
	/* Would `bytes` more bytes fit without driving the machine or its cgroup out of memory? IPCC_NO_MEMORY says what is
	 * free, what limits it and what to do. Called before anything is allocated. */
	int (*memory_check)(const char *device, uint64_t bytes, struct ipcc_error *err);
	/* A new segment, all memory allocated, mapped writable. */
	int (*create)(const char *device, const char *name, uint64_t bytes, struct device_segment *segment,
		      struct ipcc_error *err);
	/* Ends writing for ever: unmaps, then seals. The fd is ready for the broker. */
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
