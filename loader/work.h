/*
 * What the workers of a fill share, and one worker's part. Inside of fill.c and work*.c only.
 *
 * Invariants: `lock` guards what it says and is held for a few instructions; the first error wins and ends all work; what
 * is handed to a worker (an extent, a block of the rest) is its alone.
 */
#ifndef IPCC_LOADER_WORK_H
#define IPCC_LOADER_WORK_H

#include "loader/shards.h"
#include "loader/fill.h"
#include "loader/pool.h"
#include "loader/reader.h"
#include "loader/units.h"

#include <pthread.h>
#include <time.h>

/* What is hashed and written in one go: small enough to stay in a core's second-level cache between the two. */
#define WORK_PIECE_BYTES ((uint64_t)64 << 10)
#define WORK_MAX_WINDOW	 POOL_MAX_BUFFERS

/* A segment's extents that are not taken yet. */
struct lane {
	uint32_t next, end;
	unsigned workers;
};

struct fill {
	const struct checkpoint *cp;
	const struct plan *plan;
	const struct sink *sink;
	const struct fill_options *options;
	struct fill_result *result;
	struct units units;
	struct shards files;
	struct choice choice;
	unsigned threads;
	unsigned window; /* units that a worker has under way */
	int ring_error;	 /* negative errno of the probe */

	pthread_mutex_t lock;
	struct ipcc_error error; /* code 0: none */
	struct lane *lanes;	 /* of each segment */
	uint32_t rest_segment;	 /* the next block that may be left to hash, ... */
	uint64_t rest_block;
	uint64_t done_bytes;
	struct fill_report *report;
	pthread_mutex_t progress_lock; /* held around the callback; taken before `lock` */
};

/* A unit under way. */
struct job {
	struct unit unit;
	struct open_file *file;
	bool asked;	    /* the choice was, ... */
	enum way way;	    /* ... and answered this, ... */
	bool measured;	    /* ... to find out how fast it is */
	uint64_t waited_ns; /* for the disk, past the page cache */
	enum fill_path path;
	unsigned slot;	     /* of the pool and the reader, where they are needed */
	uint64_t read_begin; /* PATH_DIRECT: the aligned superset */
	uint32_t extent;
	bool ends_extent;
};

struct worker {
	struct fill *fill;
	bool sends;	       /* to a device: all is read into buffers, and sent from there */
	bool unpinned;	       /* it cannot pin them: they are written, not sent */
	struct pool pool;      /* a buffer for each slot; empty until needed, as the reader is */
	struct reader *reader; /* into the pool */
	uint8_t *piece;	       /* WORK_PIECE_BYTES */
	struct checksum *file_sum;
	struct digest_cursor cursor;
	struct job jobs[WORK_MAX_WINDOW]; /* a ring */
	unsigned first, count;
	unsigned next_slot;
	/* What comes next. */
	uint32_t lane; /* UINT32_MAX: none */
	uint32_t extent;
	uint64_t next_unit, end_unit;
	bool waits; /* the next unit's job is made already, and waits */
	uint64_t path_bytes[PATH_COUNT];
	uint64_t refused_bytes;
};

static inline uint64_t work_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- work.c: the order of work ---- */

/* Reads extents until none is left, or there is an error. */
void work_extents(struct fill *fill);
/* Hashes what is left: blocks of segments that several workers filled. */
void work_rest(struct fill *fill);
/* Keeps the first error. */
void work_report(struct fill *fill, const struct ipcc_error *error);

/* ---- work_pool.c: a worker's buffers ---- */

/* Makes the buffers, once. */
int work_make_pool(struct worker *worker, struct ipcc_error *err);
/* Makes what reads past the page cache need, once. */
int work_make_reader(struct worker *worker, struct ipcc_error *err);

/* Sends what the plan wants of a unit, which lies at `from`, in the buffer of the job's slot; where that cannot be pinned,
 * writes it. */
int work_send(struct worker *worker, const struct job *job, const uint8_t *from, struct ipcc_error *err);
/* Waits for all that was sent, whatever fails; code and message are the first failure's. */
int work_settle(struct worker *worker, struct ipcc_error *err);

/* ---- work_unit.c: one unit ---- */

/* Chooses the way, opens the file, starts what can be started; *wait: not before another job is finished. */
int job_begin(struct worker *worker, struct job *job, bool *wait, struct ipcc_error *err);
/* Waits for it, hashes, writes, and books it. */
int job_finish(struct worker *worker, struct job *job, struct ipcc_error *err);

#endif
