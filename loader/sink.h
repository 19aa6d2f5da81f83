/*
 * Where loaded bytes go: the segments of a plan, written by whoever knows what they are. The loader knows no broker and no
 * device; tools/publish.c joins them.
 */
#ifndef IPCC_LOADER_SINK_H
#define IPCC_LOADER_SINK_H

#include "manifest/error.h"

#include <stdint.h>

struct sink {
	void *context;
	/* Copies `bytes` bytes to `offset` of a segment. Called by several threads at once, for ranges that do not overlap.
	 * `from` may be a mapped file that is truncated meanwhile: a SIGBUS in here is caught, so nothing may be held. */
	int (*write)(void *context, uint32_t segment, uint64_t offset, const void *from, uint64_t bytes,
		     struct ipcc_error *err);
	/* Copies back what was written. */
	int (*read)(void *context, uint32_t segment, uint64_t offset, void *to, uint64_t bytes, struct ipcc_error *err);
};

#endif
