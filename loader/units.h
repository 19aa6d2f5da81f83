/*
 * A plan cut into work, as plain data: units, each a range of a file that is read in one go, and extents, runs of units that
 * one worker does in their order.
 *
 *   - A unit lies within one block of its file (HASH_BLOCK_BYTES). Where all data of a file is planned, its units are all
 *     its blocks, the header's included, so that the file can be hashed on the way; else they are only what is needed,
 *     pieces with gaps of less than UNIT_GAP_BYTES between them taken as one.
 *   - Units are in the order of the files, so along them the place in the segments only grows.
 *   - An extent's units begin in the same segment. It is long enough that what its ends share with its neighbours (a block
 *     of a segment) does not count, and shorter towards the end of a segment, so that all workers end at about the same time.
 */
#ifndef IPCC_LOADER_UNITS_H
#define IPCC_LOADER_UNITS_H

#include "loader/checkpoint.h"
#include "loader/plan.h"

#include <stdbool.h>
#include <stdint.h>

/* A read of its own costs more than the transfer of so many bytes (a tenth of a millisecond at 1 GB/s). */
#define UNIT_GAP_BYTES ((uint64_t)64 << 10)

struct unit {
	uint32_t file;
	uint32_t bytes; /* at most HASH_BLOCK_BYTES */
	uint64_t begin; /* in the file */
};

struct extent {
	uint32_t segment;
	uint32_t unit_count;
	uint64_t first_unit;
};

struct units {
	uint64_t unit_count;
	struct unit *units;
	uint32_t extent_count;
	struct extent *extents;
	uint64_t *file_units; /* of each file of the checkpoint, how many; 0: it is not read */
	bool *file_whole;     /* of each file: all of it is read */
	uint64_t bytes;	      /* of all units */
};

/* How long extents are. */
struct extent_sizes {
	uint64_t least_bytes, most_bytes; /* a little more, since units are not cut */
	unsigned workers;		  /* for each segment; 0: all extents have most_bytes */
};

/* Cuts `plan` of `cp`. Release with units_fini. 0 or -ENOMEM. */
int units_init(struct units *units, const struct checkpoint *cp, const struct plan *plan,
	       const struct extent_sizes *sizes);

/* Harmless on a zeroed struct. */
void units_fini(struct units *units);

#endif
