/*
 * Where loaded bytes go: the segments of a plan, written by whoever knows what they are. The loader knows no broker;
 * tools/publish.c joins them.
 */
#ifndef IPCC_LOADER_SINK_H
#define IPCC_LOADER_SINK_H

#include "loader/device/device.h"
#include "manifest/error.h"

#include <stdint.h>

struct sink {
	void *context;
	/* Copies `bytes` bytes to `offset` of a segment. Called by several threads at once, for ranges that do not overlap.
	 * Without a device, `from` may be a mapped file that is truncated meanwhile: a SIGBUS in here is caught, so nothing
	 * may be held. */
	int (*write)(void *context, uint32_t segment, uint64_t offset, const void *from, uint64_t bytes,
		     struct ipcc_error *err);
	/* A device with windows: files are read into buffers that it has pinned, and it takes the bytes from there. NULL:
	 * all goes through `write`, as do small pieces. */
	const struct device *device;
	const char *device_name;
	/* The device's window_send, with the number of the segment. */
	int (*send)(void *context, struct device_window *window, uint32_t segment, uint64_t offset, const void *from,
		    uint64_t bytes, struct ipcc_error *err);
	/* Copies back what was written. */
	int (*read)(void *context, uint32_t segment, uint64_t offset, void *to, uint64_t bytes, struct ipcc_error *err);
};

#endif
