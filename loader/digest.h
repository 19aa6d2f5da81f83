/*
 * Hashes on the way: the blocks of files, each read by one worker in one go, and the blocks of segments, which a worker
 * fills in order within its extent. Bytes are hashed from where they were read, while the caches still hold them.
 *
 * A block in which an extent ends and the next one begins is handed from one worker to the other (seam.h). What is left is
 * a block that more extents share, which is read back at the end, and one that nothing fills, which is zeros.
 */
#ifndef IPCC_LOADER_DIGEST_H
#define IPCC_LOADER_DIGEST_H

#include "loader/plan.h"
#include "loader/seam.h"
#include "loader/units.h"
#include "manifest/hash.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* More is not held for seams; what finds no room is read back. */
#define DIGEST_MOST_HELD ((uint64_t)64 << 20)

enum block_state { BLOCK_OPEN, BLOCK_SHARED, BLOCK_DONE }; /* shared: by several extents */

struct digest_segment {
	struct hash128 hash;	/* over the block hashes, once all are there */
	struct hash128 *blocks; /* hash_block_count(segment bytes) of them */
	uint8_t *states;	/* enum block_state of each; a block is one worker's, or a seam's, until the rest */
	uint64_t block_count;
	uint64_t bytes;
};

/* Of all segments of a plan. */
struct digest {
	uint32_t segment_count;
	struct digest_segment *segments;
	uint32_t extent_count;
	struct seam *seams; /* seams[e]: in which extent e begins; the block of one that exists is BLOCK_SHARED */
	uint32_t *ends;	    /* ends[e]: the number of the seam in which extent e ends; 0: none */
	atomic_uint_fast64_t held; /* bytes that seams hold */
};

/* Finds the blocks that extents share. Release with digest_fini. 0 or -ENOMEM. */
int digest_init(struct digest *digest, const struct plan *plan, const struct units *units);
void digest_fini(struct digest *digest);

/* One worker's place. */
struct digest_cursor {
	struct digest *digest;
	struct checksum *sum;
	uint32_t extent;
	struct seam *seam; /* of the block, while there is one that is not finished alone */
	bool holding;	   /* the bytes for the other side, instead of hashing them */
	bool active;
	uint32_t segment;
	uint64_t block;
	uint64_t at; /* in the segment; hashed up to here */
};

/* 0 or -ENOMEM. */
int digest_cursor_init(struct digest_cursor *cursor, struct digest *digest);
void digest_cursor_fini(struct digest_cursor *cursor);
/* What follows is of that extent. */
void digest_begin(struct digest_cursor *cursor, uint32_t extent);
/* Bytes that go to that place, which lies behind all given before; what is left out is zeros. */
void digest_add(struct digest_cursor *cursor, uint32_t segment, uint64_t offset, const void *bytes, uint64_t length);
/* The end of an extent. */
void digest_end(struct digest_cursor *cursor);

#endif
