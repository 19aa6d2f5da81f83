/* A worker's buffers, the reader that fills them, and the device that empties them; see work.h. */
#include "loader/work.h"

#include "loader/scatter.h"
#include "manifest/fail.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

/* A transfer of its own costs about as much as gathering so many bytes with their neighbours. */
#define SEND_LEAST_BYTES ((uint64_t)64 << 10)

/* Four of a megabyte: what one reads and hashes next fits into a core's second-level cache with what is being sent. */
#define OUTBOX_BUFFERS	    4
#define OUTBOX_BUFFER_BYTES ((uint64_t)1 << 20)

/* A unit may begin and end anywhere: room for the aligned superset. */
#define BUFFER_BYTES (HASH_BLOCK_BYTES + 2 * READER_MAX_ALIGNMENT)

static int make_pool(struct worker *worker, struct pool *pool, unsigned count, uint64_t bytes, struct ipcc_error *err)
{
	struct fill *fill = worker->fill;

	int r = pool_init(pool, count, bytes);
	if (r < 0)
		return fail_errno(err, -r, "%u buffers of %" PRIu64 " bytes for reading", count, bytes);
	pthread_mutex_lock(&fill->lock);
	fill->report->pool_bytes += count * bytes;
	pthread_mutex_unlock(&fill->lock);
	return 0;
}

/* Where it cannot be, nothing is sent any more. */
static void pin(struct worker *worker, struct pool *pool)
{
	struct fill *fill = worker->fill;
	struct ipcc_error why;

	if (pool_pin(pool, fill->sink->device, fill->sink->device_name, &why) == 0)
		return;
	worker->sends = false;
	pthread_mutex_lock(&fill->lock);
	snprintf(fill->report->unpinned, sizeof(fill->report->unpinned), "%.159s", why.message);
	pthread_mutex_unlock(&fill->lock);
}

int work_pin(struct worker *worker, struct ipcc_error *err)
{
	int r = make_pool(worker, &worker->outbox, OUTBOX_BUFFERS, OUTBOX_BUFFER_BYTES, err);
	if (r != 0)
		return r;
	worker->sends = true;
	pin(worker, &worker->outbox);
	return 0;
}

int work_make_reader(struct worker *worker, struct ipcc_error *err)
{
	struct fill *fill = worker->fill;
	const struct reader_kind *kind = fill->ring_error == 0 ? &reader_ring : &reader_threads;

	if (worker->reader != NULL)
		return 0;
	int r = make_pool(worker, &worker->pool, fill->window, BUFFER_BYTES, err);
	if (r != 0)
		return r;
	if (worker->sends)
		pin(worker, &worker->pool);
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

struct sending {
	struct worker *worker;
	const struct part *part;
	struct ipcc_error *err;
};

static int send_piece(void *context, uint32_t segment, uint64_t offset, const uint8_t *from, uint64_t bytes)
{
	struct sending *s = context;
	struct pool *pool = s->part->pool;
	const struct sink *sink = s->worker->fill->sink;

	if (bytes < SEND_LEAST_BYTES)
		return sink->write(sink->context, segment, offset, from, bytes, s->err);
	pool->sent[s->part->buffer] = true;
	return sink->send(sink->context, pool->windows[s->part->buffer], segment, offset, from, bytes, s->err);
}

int work_send(struct worker *worker, const struct part *part, struct ipcc_error *err)
{
	struct sending s = {worker, part, err};

	return scatter(worker->fill->plan, part->file, part->begin, part->bytes, part->from, send_piece, &s);
}

static int settle_pool(struct pool *pool, struct ipcc_error *err)
{
	int first = 0;

	for (unsigned i = 0; i < pool->count; i++) {
		int r = pool_settle(pool, i, err);
		first = first != 0 ? first : r;
	}
	return first;
}

int work_settle(struct worker *worker, struct ipcc_error *err)
{
	int outbox = settle_pool(&worker->outbox, err), pool = settle_pool(&worker->pool, err);

	return outbox != 0 ? outbox : pool;
}
