/* See reader.h: what both implementations share. */
#include "loader/reader.h"

#include "bpf/probes.h"
#include <errno.h>
#include <stdlib.h>

/* Where a read with O_DIRECT can go on, on all file systems but those with larger sectors; there it is an error, and the
 * unit is read again through the page cache. */
#define RESUME_ALIGNMENT 4096

struct reader *reader_new(const struct reader_kind *kind, const struct pool *pool)
{
	struct reader *reader = calloc(1, sizeof(*reader));
	struct reader_slot *slots = calloc(pool->count, sizeof(*slots));

	if (reader == NULL || slots == NULL)
		goto failed;
	*reader = (struct reader){.kind = kind, .pool = pool, .slot_count = pool->count, .slots = slots};
	errno = -kind->init(reader);
	if (errno == 0)
		return reader;
failed:;
	int error = errno;
	free(slots);
	free(reader);
	errno = error;
	return NULL;
}

void reader_free(struct reader *reader)
{
	if (reader == NULL)
		return;
	reader->kind->fini(reader);
	free(reader->slots);
	free(reader);
}

void reader_start(struct reader *reader, unsigned slot, int fd, uint64_t offset, uint64_t bytes)
{
	reader->slots[slot] = (struct reader_slot){.fd = fd, .offset = offset, .bytes = bytes, .pending = true};
	PROBE_READ_SUBMITTED(&reader->slots[slot], 0, fd, offset, bytes);
	reader->kind->start(reader, slot);
}

ssize_t reader_wait(struct reader *reader, unsigned slot)
{
	struct reader_slot *s = &reader->slots[slot];

	reader->kind->wait(reader, slot);
	return s->error != 0 ? s->error : (ssize_t)s->done;
}

void reader_end(struct reader_slot *slot)
{
	PROBE_READ_COMPLETED(slot, 0, slot->error != 0 ? slot->error : (int64_t)slot->done);
	slot->pending = false;
}

bool reader_advance(struct reader_slot *slot, ssize_t got)
{
	if (got == -EAGAIN || got == -EINTR)
		return true;
	if (got < 0)
		slot->error = (int)got;
	uint64_t end = got > 0 ? slot->done + (uint64_t)got : 0;
	bool more = end > slot->reached;
	if (more)
		slot->reached = end;
	slot->done = slot->reached;
	if (!more || end >= slot->bytes)
		return false;
	/* It ended at an odd place: the end of the file, or a short read. From an aligned place the next one shows which. */
	slot->done -= slot->done % RESUME_ALIGNMENT;
	return true;
}
