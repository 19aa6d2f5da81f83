/*
 * Executes a plan: reads what it needs of a checkpoint's files with several threads, hashes it on the way, and writes it to
 * a sink.
 *
 * Each range that is in the page cache is taken from there, through a mapping; the rest comes past the page cache (O_DIRECT)
 * or through it, whichever proves faster, or as the caller says. Both go on at once.
 *
 * All hashes are those of manifest/hash.h: of files over blocks of the file, its header included; of segments over blocks
 * of the segment, gaps included. A file that is not the same before and after (size, times, inode) fails the whole.
 */
#ifndef IPCC_LOADER_FILL_H
#define IPCC_LOADER_FILL_H

#include "loader/checkpoint.h"
#include "loader/choice.h"
#include "loader/digest.h"
#include "loader/plan.h"
#include "loader/sink.h"
#include "manifest/error.h"
#include "manifest/hash.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FILL_DEFAULT_THREADS 8	/* at most; else one per online processor */
#define FILL_DEVICE_THREADS  16 /* the same, where a device takes the bytes by itself */
#define FILL_MAX_THREADS     32
/* All buffers of a fill together; they are only allocated for reads past the page cache, and for a device. */
#define FILL_POOL_BYTES ((uint64_t)128 << 20)

enum fill_io { FILL_AUTO, FILL_DIRECT, FILL_BUFFERED, FILL_MMAP };

/* How a unit was read. */
enum fill_path { PATH_DIRECT, PATH_BUFFERED, PATH_MAPPED, PATH_COUNT };

struct fill_options {
	unsigned threads; /* 0: the default */
	enum fill_io io;
	/* Other ranks read the same files now: what is not in the page cache is read through it, so that it is read from
	 * the disk once. */
	bool shared;
	bool no_ring; /* as if io_uring were forbidden */
	bool no_hash; /* no hashes in the result: for measuring what they cost */
	/* Called after each piece of work from one thread at a time, not always the same one; `done` of `total` bytes of
	 * the files are read, never fewer than the call before said. The last call of a successful fill has done ==
	 * total. Must not call fill functions. NULL: none. */
	void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);
	void *context;
	/* Looked at before each piece of work (a few milliseconds); true ends the fill with IPCC_CANCELED. May be set from
	 * anywhere, signal handlers and `progress` included. NULL: none. */
	const atomic_bool *cancel;
};

/* What a fill did, for people. */
struct fill_report {
	unsigned threads;
	uint64_t path_bytes[PATH_COUNT];
	bool readers;		/* reads past the page cache were made, ... */
	bool ring;		/* ... through io_uring, ... */
	bool registered;	/* ... into registered buffers */
	int ring_error;		/* why not io_uring: a positive errno; 0 where it was used, or not needed */
	uint64_t pool_bytes;	/* of all buffers */
	char unpinned[160];	/* why the sink's device could not take bytes from them by itself; empty: it could */
	uint64_t duration_ns;	/* of all of fill_run */
	uint64_t refused_bytes; /* that a file system did not give past the page cache, though wanted */
	unsigned device_count;
	struct choice_device devices[CHOICE_MAX_DEVICES]; /* what was measured, see choice.h */
};

struct fill_result {
	uint32_t file_count;
	struct hash128 *files; /* content hash of each file of the checkpoint, ... */
	bool *file_hashed;     /* ... where all of it was read */
	bool *file_read;       /* anything was read of it */
	struct digest segments;
	uint64_t bytes_read;
	struct fill_report report;
};

/*
 * Fills the segments of `plan`, which hold zeros, through `sink`. `options` may be NULL. Returns when all its threads are
 * gone, whatever happens; after a failure the segments' contents are undefined and *result is untouched. Release *result
 * with fill_result_fini.
 *
 * IPCC_INVALID: a file changed or is shorter than it was; IPCC_FAILED: reading failed (file and offset are named);
 * IPCC_NOT_FOUND: a file is gone; IPCC_CANCELED; IPCC_NO_MEMORY; and what the sink returned. Several fills may run at once;
 * while one does, the process's SIGBUS action is the fill's (guard.h).
 */
int fill_run(const struct checkpoint *cp, const struct plan *plan, const struct sink *sink,
	     const struct fill_options *options, struct fill_result *result, struct ipcc_error *err);

/* Harmless on a zeroed struct. */
void fill_result_fini(struct fill_result *result);

#endif
