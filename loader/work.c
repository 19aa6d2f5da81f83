/*
 * The order of work; see work.h. A worker takes an extent, keeps a window of its units under way, and finishes them in their
 * order. It stays with a segment as long as that has extents: a memfd takes one write at a time, and disks like long runs.
 */
#include "loader/work.h"

#include "manifest/fail.h"
#include "manifest/fd.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NO_LANE UINT32_MAX

void work_report(struct fill *fill, const struct ipcc_error *error)
{
	pthread_mutex_lock(&fill->lock);
	if (fill->error.code == 0)
		fill->error = *error;
	pthread_mutex_unlock(&fill->lock);
}

/* With the lock held: is there reason to stop? */
static bool is_over(struct fill *fill)
{
	if (fill->error.code == 0 && fill->options->cancel != NULL &&
	    atomic_load_explicit(fill->options->cancel, memory_order_relaxed))
		fail(&fill->error, IPCC_CANCELED, "loading was canceled");
	return fill->error.code != 0;
}

static bool stopped(struct fill *fill)
{
	pthread_mutex_lock(&fill->lock);
	bool over = is_over(fill);
	pthread_mutex_unlock(&fill->lock);
	return over;
}

/* With the lock held: the lane with work and the fewest workers, or NO_LANE. */
static uint32_t find_lane(const struct fill *fill)
{
	uint32_t best = NO_LANE;

	for (uint32_t i = 0; i < fill->plan->segment_count; i++) {
		const struct lane *lane = &fill->lanes[i];
		if (lane->next < lane->end && (best == NO_LANE || lane->workers < fill->lanes[best].workers))
			best = i;
	}
	return best;
}

static bool take_extent(struct worker *worker)
{
	struct fill *fill = worker->fill;
	const struct extent *extent = NULL;

	pthread_mutex_lock(&fill->lock);
	if (worker->lane != NO_LANE && fill->lanes[worker->lane].next == fill->lanes[worker->lane].end) {
		fill->lanes[worker->lane].workers--;
		worker->lane = NO_LANE;
	}
	if (worker->lane == NO_LANE) {
		worker->lane = find_lane(fill);
		if (worker->lane != NO_LANE)
			fill->lanes[worker->lane].workers++;
	}
	if (worker->lane != NO_LANE)
		extent = &fill->units.extents[fill->lanes[worker->lane].next++];
	pthread_mutex_unlock(&fill->lock);
	if (extent == NULL)
		return false;
	worker->extent = (uint32_t)(extent - fill->units.extents);
	worker->next_unit = extent->first_unit;
	worker->end_unit = extent->first_unit + extent->unit_count;
	return true;
}

/* Puts units under way while there is room and nothing forbids it. */
static int fill_window(struct worker *worker, struct ipcc_error *err)
{
	struct fill *fill = worker->fill;

	while (worker->count < fill->window) {
		struct job *job = &worker->jobs[(worker->first + worker->count) % fill->window];
		if (worker->next_unit == worker->end_unit && !take_extent(worker))
			return 0;
		if (!worker->waits)
			*job = (struct job){.unit = fill->units.units[worker->next_unit],
					    .extent = worker->extent,
					    .ends_extent = worker->next_unit + 1 == worker->end_unit};
		int r = job_begin(worker, job, &worker->waits, err);
		if (r != 0 || worker->waits)
			return r;
		worker->next_unit++;
		worker->count++;
	}
	return 0;
}

static int run(struct worker *worker, struct ipcc_error *err)
{
	while (!stopped(worker->fill)) {
		int r = fill_window(worker, err);
		if (r != 0)
			return r;
		if (worker->count == 0)
			return work_settle(worker, err);
		r = job_finish(worker, &worker->jobs[worker->first], err);
		if (r != 0)
			return r;
		worker->first = (worker->first + 1) % worker->fill->window;
		worker->count--;
	}
	return 0;
}

static void add_report(struct worker *worker)
{
	struct fill *fill = worker->fill;

	pthread_mutex_lock(&fill->lock);
	for (unsigned i = 0; i < PATH_COUNT; i++)
		fill->report->path_bytes[i] += worker->path_bytes[i];
	fill->report->refused_bytes += worker->refused_bytes;
	pthread_mutex_unlock(&fill->lock);
}

void work_extents(struct fill *fill)
{
	struct worker worker = {.fill = fill, .lane = NO_LANE, .sends = fill->sink->device != NULL};
	struct ipcc_error error = {0};

	worker.piece = malloc(WORK_PIECE_BYTES);
	worker.file_sum = checksum_new();
	int r = digest_cursor_init(&worker.cursor, &fill->result->segments);
	if (worker.piece == NULL || worker.file_sum == NULL || r < 0)
		fail(&error, IPCC_NO_MEMORY, "no memory for a buffer of %" PRIu64 " bytes", WORK_PIECE_BYTES);
	else
		run(&worker, &error);
	if (error.code != 0)
		work_report(fill, &error);
	add_report(&worker);
	reader_free(worker.reader);
	pool_fini(&worker.pool);
	digest_cursor_fini(&worker.cursor);
	if (worker.file_sum != NULL)
		checksum_free(worker.file_sum);
	free(worker.piece);
}

/* The next block that nobody hashed; false when there is none left. */
static bool take_rest(struct fill *fill, uint32_t *segment, uint64_t *block)
{
	const struct digest *digest = &fill->result->segments;
	bool found = false;

	pthread_mutex_lock(&fill->lock);
	while (!found && !is_over(fill) && fill->rest_segment < digest->segment_count) {
		const struct digest_segment *s = &digest->segments[fill->rest_segment];
		if (fill->rest_block == s->block_count) {
			fill->rest_segment++;
			fill->rest_block = 0;
			continue;
		}
		*segment = fill->rest_segment;
		*block = fill->rest_block++;
		found = s->states[*block] != BLOCK_DONE;
	}
	pthread_mutex_unlock(&fill->lock);
	return found;
}

void work_rest(struct fill *fill)
{
	cleanup_free void *buffer = malloc(HASH_BLOCK_BYTES);
	struct ipcc_error error = {0};
	uint32_t segment;
	uint64_t block;

	if (buffer == NULL) {
		fail(&error, IPCC_NO_MEMORY, "no memory for a buffer of %" PRIu64 " bytes", HASH_BLOCK_BYTES);
		work_report(fill, &error);
		return;
	}
	while (take_rest(fill, &segment, &block)) {
		struct digest_segment *s = &fill->result->segments.segments[segment];
		uint64_t begin = block * HASH_BLOCK_BYTES;
		uint64_t bytes = s->bytes - begin < HASH_BLOCK_BYTES ? s->bytes - begin : HASH_BLOCK_BYTES;
		if (s->states[block] == BLOCK_OPEN) {
			/* Nothing was written there. */
			memset(buffer, 0, bytes);
		} else if (fill->sink->read(fill->sink->context, segment, begin, buffer, bytes, &error) != 0) {
			work_report(fill, &error);
			return;
		}
		s->blocks[block] = hash_bytes(buffer, bytes);
		s->states[block] = BLOCK_DONE;
	}
}
