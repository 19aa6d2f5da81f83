/*
 * Hashes on the way: the blocks of files, each read by one worker in one go, and the blocks of segments, which a worker
 * fills in order within its extent. Bytes are hashed from where they were read, while the caches still hold them.
 *
 * A block of a segment that two extents fill, or that nothing fills, is left to digest_rest, which reads it back.
 */
#ifndef IPCC_LOADER_DIGEST_H
#define IPCC_LOADER_DIGEST_H

#include "loader/plan.h"
#include "loader/units.h"
#include "manifest/hash.h"

#include <stdbool.h>
#include <stdint.h>

enum block_state { BLOCK_OPEN, BLOCK_SHARED, BLOCK_DONE };

struct digest_segment {
	struct hash128 hash;	/* over the block hashes, once all are there */
	struct hash128 *blocks; /* hash_block_count(segment bytes) of them */
	uint8_t *states;	/* enum block_state of each; a block is one worker's until the rest */
	uint64_t block_count;
	uint64_t bytes;
};

/* Of all segments of a plan. */
struct digest {
	uint32_t segment_count;
	struct digest_segment *segments;
};

/* Finds the blocks that extents share. Release with digest_fini. 0 or -ENOMEM. */
int digest_init(struct digest *digest, const struct plan *plan, const struct units *units);
void digest_fini(struct digest *digest);

/* One worker's place. */
struct digest_cursor {
	struct digest *digest;
	struct checksum *sum;
	bool active;
	uint32_t segment;
	uint64_t block;
	uint64_t at; /* in the segment; hashed up to here */
};

/* 0 or -ENOMEM. */
int digest_cursor_init(struct digest_cursor *cursor, struct digest *digest);
void digest_cursor_fini(struct digest_cursor *cursor);
/* Bytes that go to that place, which lies behind all given before; what is left out is zeros. */
void digest_add(struct digest_cursor *cursor, uint32_t segment, uint64_t offset, const void *bytes, uint64_t length);
/* The end of an extent. */
void digest_end(struct digest_cursor *cursor);

#endif
