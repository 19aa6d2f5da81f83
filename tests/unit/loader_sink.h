/* A sink that is plain memory, for the loader's tests: segments[i] is zeroed memory of the plan's size. */
#ifndef IPCC_TESTS_LOADER_SINK_H
#define IPCC_TESTS_LOADER_SINK_H

#include "loader/sink.h"

#include <string.h>

static inline int memory_write(void *context, uint32_t segment, uint64_t offset, const void *from, uint64_t bytes,
			       struct ipcc_error *err)
{
	(void)err;
	memcpy(((uint8_t **)context)[segment] + offset, from, bytes);
	return 0;
}

static inline int memory_read(void *context, uint32_t segment, uint64_t offset, void *to, uint64_t bytes,
			      struct ipcc_error *err)
{
	(void)err;
	memcpy(to, ((uint8_t **)context)[segment] + offset, bytes);
	return 0;
}

static inline struct sink memory_sink(void **segments)
{
	return (struct sink){.context = segments, .write = memory_write, .read = memory_read};
}

#endif
