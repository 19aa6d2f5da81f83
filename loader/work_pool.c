/* A worker's buffers, the reader that fills them, and the device that empties them; see work.h. */
#include "loader/work.h"

#include "loader/scatter.h"
#include "manifest/fail.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

/* A transfer of its own costs about as much as gathering so many bytes with their neighbours. */
#define SEND_LEAST_BYTES ((uint64_t)64 << 10)

/* A unit may begin and end anywhere: room for the aligned superset. */
#define BUFFER_BYTES (HASH_BLOCK_BYTES + 2 * READER_MAX_ALIGNMENT)

int work_make_pool(struct worker *worker, struct ipcc_error *err)
{
	struct fill *fill = worker->fill;

	if (worker->pool.memory != NULL)
		return 0;
	int r = pool_init(&worker->pool, fill->window, BUFFER_BYTES);
	if (r < 0)
		return fail_errno(err, -r, "%u buffers of %" PRIu64 " bytes for reading", fill->window, BUFFER_BYTES);
	pthread_mutex_lock(&fill->lock);
	fill->report->pool_bytes += fill->window * BUFFER_BYTES;
	pthread_mutex_unlock(&fill->lock);
	return 0;
}

int work_make_reader(struct worker *worker, struct ipcc_error *err)
{
	struct fill *fill = worker->fill;
	const struct reader_kind *kind = fill->ring_error == 0 ? &reader_ring : &reader_threads;

	if (worker->reader != NULL)
		return 0;
	int r = work_make_pool(worker, err);
	if (r != 0)
		return r;
	worker->reader = reader_new(kind, &worker->pool);
	/* The limits of rings (memory, number) may be met by a later one. */
	if (worker->reader == NULL && kind == &reader_ring) {
		int error = errno;
		pthread_mutex_lock(&fill->lock);
		fill->report->ring_error = error;
		pthread_mutex_unlock(&fill->lock);
		kind = &reader_threads;
		worker->reader = reader_new(kind, &worker->pool);
	}
	if (worker->reader == NULL)
		return fail_errno(err, errno, "a reader of %u buffers", fill->window);
	pthread_mutex_lock(&fill->lock);
	struct fill_report *report = fill->report;
	report->ring = kind == &reader_ring;
	report->registered = worker->reader->registered && (report->registered || !report->readers);
	report->readers = true;
	if (fill->ring_error != 0)
		report->ring_error = -fill->ring_error;
	pthread_mutex_unlock(&fill->lock);
	return 0;
}

/* Pins a buffer. Where it cannot be, it is not tried again. */
static void pin(struct worker *worker, unsigned slot)
{
	struct fill *fill = worker->fill;
	struct ipcc_error why;

	if (worker->unpinned || pool_pin(&worker->pool, slot, fill->sink->device, fill->sink->device_name, &why) == 0)
		return;
	worker->unpinned = true;
	pthread_mutex_lock(&fill->lock);
	snprintf(fill->report->unpinned, sizeof(fill->report->unpinned), "%.159s", why.message);
	pthread_mutex_unlock(&fill->lock);
}

struct sending {
	struct worker *worker;
	unsigned slot;
	struct ipcc_error *err;
};

static int send_piece(void *context, uint32_t segment, uint64_t offset, const uint8_t *from, uint64_t bytes)
{
	struct sending *s = context;
	struct pool *pool = &s->worker->pool;
	const struct sink *sink = s->worker->fill->sink;

	if (bytes < SEND_LEAST_BYTES || pool->windows[s->slot] == NULL)
		return sink->write(sink->context, segment, offset, from, bytes, s->err);
	pool->sent[s->slot] = true;
	return sink->send(sink->context, pool->windows[s->slot], segment, offset, from, bytes, s->err);
}

int work_send(struct worker *worker, const struct job *job, const uint8_t *from, struct ipcc_error *err)
{
	struct sending s = {worker, job->slot, err};

	pin(worker, job->slot);
	return scatter(worker->fill->plan, job->unit.file, job->unit.begin, job->unit.bytes, from, send_piece, &s);
}

int work_settle(struct worker *worker, struct ipcc_error *err)
{
	int first = 0;

	for (unsigned i = 0; i < worker->pool.count; i++) {
		int r = pool_settle(&worker->pool, i, first == 0 ? err : NULL);
		first = first != 0 ? first : r;
	}
	return first;
}
