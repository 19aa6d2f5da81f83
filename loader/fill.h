/*
 * Executes a plan: reads every file of a checkpoint once, from first byte to last, with several threads; hashes it, and
 * puts the planned ranges into the segments; then hashes the segments.
 *
 * All hashes are those of manifest/hash.h: of files over blocks of the file, its header included; of segments over blocks
 * of the segment, gaps included. A file that is not the same before and after (size, times, inode) fails the whole.
 */
#ifndef IPCC_LOADER_FILL_H
#define IPCC_LOADER_FILL_H

#include "loader/checkpoint.h"
#include "loader/plan.h"
#include "loader/sink.h"
#include "manifest/error.h"
#include "manifest/hash.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FILL_DEFAULT_THREADS 8 /* at most; else one per online processor */
#define FILL_MAX_THREADS     64

struct fill_options {
	unsigned threads; /* 0: the default */
	/* Called after each piece of work from one thread at a time, not always the same one; `done` of `total` bytes of
	 * the files are read, never fewer than the call before said. The last call of a successful fill has done ==
	 * total. Must not call fill functions. NULL: none. */
	void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);
	void *context;
	/* Looked at before each piece of work (a few milliseconds); true ends the fill with IPCC_CANCELED. May be set from
	 * anywhere, signal handlers and `progress` included. NULL: none. */
	const atomic_bool *cancel;
	/* Where the bytes go when the segments are not the processor's memory; `segments` is not looked at then. NULL: into
	 * `segments`. */
	const struct sink *sink;
};

struct fill_segment {
	struct hash128 hash;	/* over the block hashes */
	struct hash128 *blocks; /* of all blocks */
	uint64_t block_count;	/* hash_block_count(segment bytes) */
};

struct fill_result {
	uint32_t file_count;
	uint32_t segment_count;
	struct hash128 *files;	       /* content hash of each file of the checkpoint */
	struct fill_segment *segments; /* of each segment of the plan */
	uint64_t bytes_read;
};

/*
 * Fills segments[i], plan->segment_bytes[i] writable zero bytes each, for all i. `options` may be NULL. Returns when all
 * its threads are gone, whatever happens; after a failure the segments' contents are undefined and *result is untouched.
 * Release *result with fill_result_fini.
 *
 * IPCC_INVALID: a file changed or is shorter than it was; IPCC_FAILED: reading failed (file and offset are named);
 * IPCC_NOT_FOUND: a file is gone; IPCC_CANCELED; IPCC_NO_MEMORY. Several fills may run at once.
 */
int fill_run(const struct checkpoint *cp, const struct plan *plan, void *const *segments,
	     const struct fill_options *options, struct fill_result *result, struct ipcc_error *err);

/* Harmless on a zeroed struct. */
void fill_result_fini(struct fill_result *result);

#endif
