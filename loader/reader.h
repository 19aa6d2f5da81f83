/*
 * Reads that are on their way while other work is done: into the aligned buffers of a pool (pool.h), one read for each.
 * Made for O_DIRECT, where a read neither needs nor leaves anything in the page cache.
 *
 * Two implementations with the same results: io_uring (reader_ring.c), its buffers and files registered where the system
 * permits; and threads with preadv (reader_threads.c), where io_uring is forbidden or missing. Short reads are continued
 * and EAGAIN is repeated in both.
 *
 * A reader belongs to one thread. Only reader_free knows when the kernel has let go of the buffers.
 */
#ifndef IPCC_LOADER_READER_H
#define IPCC_LOADER_READER_H

#include "loader/pool.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What a file may ask its offsets and lengths to be aligned to; buffers begin at pages. Devices ask for 512 or 4096. */
#define READER_MAX_ALIGNMENT ((uint64_t)64 << 10)

struct reader;

struct reader_kind {
	int (*init)(struct reader *reader);
	void (*start)(struct reader *reader, unsigned slot);
	void (*wait)(struct reader *reader, unsigned slot);
	void (*fini)(struct reader *reader); /* ends all reads first */
};

/* One read; the implementations share it. */
struct reader_slot {
	int fd;
	uint64_t offset;
	uint64_t bytes;
	uint64_t done;	  /* where the next part begins */
	uint64_t reached; /* the most that came */
	int error;	  /* negative errno, or 0 */
	bool pending;
};

struct reader {
	const struct reader_kind *kind;
	void *state;
	const struct pool *pool;
	unsigned slot_count; /* one for each buffer */
	bool registered;     /* the ring reads into registered buffers */
	struct reader_slot *slots;
};

extern const struct reader_kind reader_ring;
extern const struct reader_kind reader_threads;

/* Can this process use io_uring? 0 or the negative errno that says why not. */
int reader_probe(void);

/* Into the buffers of `pool`, which must outlive the reader. NULL with errno. */
struct reader *reader_new(const struct reader_kind *kind, const struct pool *pool);
void reader_free(struct reader *reader);

static inline uint8_t *reader_buffer(const struct reader *reader, unsigned slot)
{
	return pool_buffer(reader->pool, slot);
}

/* Starts reading [offset, offset + bytes) of `fd` into the buffer of a slot that is not pending; a multiple of the file's
 * alignment both, at most a buffer's size. */
void reader_start(struct reader *reader, unsigned slot, int fd, uint64_t offset, uint64_t bytes);
/* Waits for it: how many bytes came, fewer than asked for only at the end of the file, or a negative errno. */
ssize_t reader_wait(struct reader *reader, unsigned slot);

/* For the implementations: `got` bytes came, or a negative errno. True when the slot's read must go on. */
bool reader_advance(struct reader_slot *slot, ssize_t got);
/* The slot's read is over. */
void reader_end(struct reader_slot *slot);

#endif
