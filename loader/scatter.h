/*
 * Where the bytes of a file go: a range of a file, looked up in a plan's sorted reads and handed on piece by piece. The
 * ranges of a file may be scattered by any number of threads.
 */
#ifndef IPCC_LOADER_SCATTER_H
#define IPCC_LOADER_SCATTER_H

#include "loader/plan.h"

#include <stdint.h>

/* Takes `bytes` bytes for that place; a result other than 0 ends the walk. */
typedef int scatter_fn(void *context, uint32_t segment, uint64_t offset, const uint8_t *from, uint64_t bytes);

/* Calls `take` for what the plan wants of [begin, begin + bytes) of that file, which lies at `from`, in the order of the
 * file. Returns the last result of `take`, or 0. */
int scatter(const struct plan *plan, uint32_t file, uint64_t begin, uint64_t bytes, const uint8_t *from,
	    scatter_fn *take, void *context);

#endif
