/*
 * Where the bytes of a file go: a block of a file, looked up in a plan's sorted reads, and put into the segments. The
 * blocks of a file may be scattered in any order and by any number of threads.
 */
#ifndef IPCC_LOADER_SCATTER_H
#define IPCC_LOADER_SCATTER_H

#include "loader/plan.h"
#include "loader/sink.h"

#include <stdint.h>

/* The place in segments[] that takes [begin, begin + bytes) of that file in one piece, or NULL when there is none (parts of
 * it go elsewhere, or nowhere). */
uint8_t *scatter_target(const struct plan *plan, void *const *segments, uint32_t file, uint64_t begin, uint64_t bytes);

/* Copies what the plan wants of [begin, begin + bytes) of that file, which lies at `from`. */
void scatter_copy(const struct plan *plan, void *const *segments, uint32_t file, uint64_t begin, uint64_t bytes,
		  const uint8_t *from);
/* The same, through a sink. */
int scatter_write(const struct plan *plan, const struct sink *sink, uint32_t file, uint64_t begin, uint64_t bytes,
		  const uint8_t *from, struct ipcc_error *err);

#endif
