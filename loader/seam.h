/*
 * A block of a segment in which one extent ends and the next one begins, so that two workers hash it: the left one begins,
 * the right one goes on from where the left one stopped. Whoever gets there first leaves what it has: the left one its
 * running hash, the right one its bytes (at most a block; extents under way, and so workers, bound their number).
 *
 * Invariants: `left_done` and `right_done` change under the lock only; what a side has left belongs to the other side from
 * then on. The block of a seam that is broken (more extents share it), or whose right side found no memory, is read back
 * at the end.
 */
#ifndef IPCC_LOADER_SEAM_H
#define IPCC_LOADER_SEAM_H

#include "manifest/hash.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct seam {
	pthread_mutex_t lock;
	uint32_t segment;
	uint64_t block;
	bool exists;   /* since seam_init, ... */
	bool broken;   /* ... as this */
	bool given_up; /* the right side's */
	bool left_done, right_done;
	struct checksum *sum; /* swapped with a worker's own, so that nothing can fail half-way */
	uint64_t at;	      /* the left one hashed up to here */
	uint8_t *held;	      /* the right one's bytes, ... */
	uint64_t begin, end;  /* ... which belong here */
};

/* 0 or -ENOMEM. */
int seam_init(struct seam *seam, uint32_t segment, uint64_t block);
void seam_fini(struct seam *seam);

/* The left side's end, having hashed up to `at` with *sum. True: the right side is done, its bytes are held, and the caller
 * finishes the block. Else the hash was left (*sum is another one now). */
bool seam_leave_left(struct seam *seam, struct checksum **sum, uint64_t at);
/* The right side's begin. True: *sum and *at are the left side's, to go on with. Else, if it may hold them, the bytes of
 * [begin, end) are to be put into seam->held; NULL: it has given up. */
bool seam_enter_right(struct seam *seam, struct checksum **sum, uint64_t *at, uint64_t begin, uint64_t end,
		      bool may_hold);
/* The right side's end. True: the left side is done, *sum and *at are its, and the caller finishes the block. */
bool seam_leave_right(struct seam *seam, struct checksum **sum, uint64_t *at);

#endif
