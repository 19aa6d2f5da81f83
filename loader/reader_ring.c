/*
 * Reads through io_uring; see reader.h. One submission for each read: at 4 MiB apiece there are few of them.
 *
 * Buffers and files are registered where that is permitted: registered buffers count against RLIMIT_MEMLOCK, which for
 * ordinary users is mostly smaller than the pool, so unregistered ones are as good a way.
 */
#include "loader/reader.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <time.h>

struct ring {
	struct io_uring uring;
	bool files; /* a table of files is registered, one entry for each slot */
};

int reader_probe(void)
{
	struct io_uring uring;

	int r = io_uring_queue_init(1, &uring, 0);
	if (r < 0)
		return r;
	io_uring_queue_exit(&uring);
	return 0;
}

static bool register_buffers(struct reader *reader, struct ring *ring)
{
	struct iovec *buffers = calloc(reader->slot_count, sizeof(*buffers));

	if (buffers == NULL)
		return false;
	for (unsigned i = 0; i < reader->slot_count; i++)
		buffers[i] = (struct iovec){reader_buffer(reader, i), reader->pool->buffer_bytes};
	int r = io_uring_register_buffers(&ring->uring, buffers, reader->slot_count);
	free(buffers);
	return r == 0;
}

static int ring_init(struct reader *reader)
{
	struct ring *ring = calloc(1, sizeof(*ring));

	if (ring == NULL)
		return -ENOMEM;
	int r = io_uring_queue_init(reader->slot_count, &ring->uring, 0);
	if (r < 0) {
		free(ring);
		return r;
	}
	ring->files = io_uring_register_files_sparse(&ring->uring, reader->slot_count) == 0;
	reader->registered = register_buffers(reader, ring);
	reader->state = ring;
	return 0;
}

/* Puts the slot's file into the table; false when it cannot be there. Each time anew: a number may be another file's now. */
static bool use_table(struct ring *ring, unsigned slot, int fd)
{
	return ring->files && io_uring_register_files_update(&ring->uring, slot, &fd, 1) == 1;
}

static void ring_start(struct reader *reader, unsigned slot)
{
	struct ring *ring = reader->state;
	struct reader_slot *s = &reader->slots[slot];
	/* One read for each slot at most, so there is always an entry. */
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
	uint8_t *to = reader_buffer(reader, slot) + s->done;
	unsigned bytes = (unsigned)(s->bytes - s->done);
	bool table = use_table(ring, slot, s->fd);
	int fd = table ? (int)slot : s->fd;

	if (reader->registered)
		io_uring_prep_read_fixed(sqe, fd, to, bytes, s->offset + s->done, (int)slot);
	else
		io_uring_prep_read(sqe, fd, to, bytes, s->offset + s->done);
	if (table)
		io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
	io_uring_sqe_set_data64(sqe, slot);
	int r;
	do
		r = io_uring_submit(&ring->uring);
	while (r == -EAGAIN || r == -EINTR || r == -EBUSY);
	if (r < 0) {
		s->error = r;
		reader_end(s);
	}
}

/* Waits for any read and books it. */
static int take_one(struct reader *reader, bool repeat)
{
	struct ring *ring = reader->state;
	struct io_uring_cqe *cqe;

	int r = io_uring_wait_cqe(&ring->uring, &cqe);
	if (r == -EINTR || r == -EAGAIN)
		return 0;
	if (r < 0)
		return r;
	unsigned slot = (unsigned)io_uring_cqe_get_data64(cqe);
	int got = cqe->res;
	io_uring_cqe_seen(&ring->uring, cqe);
	if (reader_advance(&reader->slots[slot], got) && repeat) {
		/* The device's queue is full: not at once again. */
		if (got == -EAGAIN)
			nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		ring_start(reader, slot);
	} else {
		reader_end(&reader->slots[slot]);
	}
	return 0;
}

static void ring_wait(struct reader *reader, unsigned slot)
{
	struct reader_slot *s = &reader->slots[slot];

	while (s->pending) {
		int r = take_one(reader, true);
		if (r < 0) {
			s->error = r;
			return;
		}
	}
}

static void ring_fini(struct reader *reader)
{
	struct ring *ring = reader->state;

	/* The kernel writes into the buffers until it has said that it is done. */
	for (unsigned i = 0; i < reader->slot_count; i++) {
		while (reader->slots[i].pending && take_one(reader, false) == 0)
			;
	}
	io_uring_queue_exit(&ring->uring);
	free(ring);
}

const struct reader_kind reader_ring = {
	.init = ring_init,
	.start = ring_start,
	.wait = ring_wait,
	.fini = ring_fini,
};
