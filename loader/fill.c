/*
 * See fill.h. Two phases of equal workers: all extents, then the few blocks that extents shared. The caller is a worker too,
 * so that a fill needs no thread to succeed.
 */
#include "loader/fill.h"

#include "loader/guard.h"
#include "loader/shown.h"
#include "loader/work.h"
#include "manifest/fail.h"
#include "manifest/workers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXTENT_LEAST_BYTES ((uint64_t)16 << 20)
#define EXTENT_MOST_BYTES  ((uint64_t)128 << 20)

static unsigned thread_count(const struct fill_options *options, const struct sink *sink)
{
	unsigned most = sink->device != NULL ? FILL_DEVICE_THREADS : FILL_DEFAULT_THREADS;

	if (options->threads != 0)
		return options->threads < FILL_MAX_THREADS ? options->threads : FILL_MAX_THREADS;
	long online = sysconf(_SC_NPROCESSORS_ONLN);
	return online < 1 ? 1 : online < (long)most ? (unsigned)online : most;
}

static unsigned window_of(unsigned threads)
{
	uint64_t units = FILL_POOL_BYTES / HASH_BLOCK_BYTES / threads;
	return units < 1 ? 1 : units < WORK_MAX_WINDOW ? (unsigned)units : WORK_MAX_WINDOW;
}

struct phase {
	struct fill *fill;
	void (*work)(struct fill *fill);
};

static void work_phase(void *context)
{
	const struct phase *phase = context;
	phase->work(phase->fill);
}

/* Returns the error's code. */
static int run_phase(struct fill *fill, void (*work)(struct fill *fill))
{
	struct phase phase = {fill, work};

	workers_run(fill->threads, work_phase, &phase);
	return fill->error.code;
}

void fill_result_fini(struct fill_result *result)
{
	digest_fini(&result->segments);
	free(result->files);
	free(result->file_hashed);
	free(result->file_read);
	*result = (struct fill_result){0};
}

static void make_lanes(struct fill *fill)
{
	for (uint32_t i = 0; i < fill->units.extent_count; i++) {
		struct lane *lane = &fill->lanes[fill->units.extents[i].segment];
		if (lane->end == 0)
			lane->next = i;
		lane->end = i + 1;
	}
}

static struct extent_sizes extent_sizes(const struct fill *fill)
{
	uint32_t segments = fill->plan->segment_count > 0 ? fill->plan->segment_count : 1;

	return (struct extent_sizes){.least_bytes = EXTENT_LEAST_BYTES,
				     .most_bytes = EXTENT_MOST_BYTES,
				     .workers = (fill->threads + segments - 1) / segments};
}

/* Everything that is written later is allocated here, but for the readers' buffers. */
static int allocate(struct fill *fill)
{
	const struct checkpoint *cp = fill->cp;
	struct fill_result *result = fill->result;
	const struct extent_sizes sizes = extent_sizes(fill);

	fill->lanes = calloc((size_t)fill->plan->segment_count + 1, sizeof(*fill->lanes));
	result->files = calloc((size_t)cp->file_count + 1, sizeof(*result->files));
	result->file_hashed = calloc((size_t)cp->file_count + 1, sizeof(*result->file_hashed));
	result->file_read = calloc((size_t)cp->file_count + 1, sizeof(*result->file_read));
	if (fill->lanes == NULL || result->files == NULL || result->file_hashed == NULL || result->file_read == NULL)
		return -ENOMEM;
	result->file_count = cp->file_count;
	int r = units_init(&fill->units, cp, fill->plan, &sizes);
	if (r == 0)
		r = digest_init(&result->segments, fill->plan, &fill->units);
	if (r == 0)
		r = shards_init(&fill->files, cp, &fill->units);
	if (r == 0)
		make_lanes(fill);
	return r;
}

static void conclude(struct fill *fill)
{
	struct fill_result *result = fill->result;
	bool hashed = !fill->options->no_hash;

	for (uint32_t i = 0; i < result->file_count; i++) {
		result->file_read[i] = fill->units.file_units[i] > 0;
		result->file_hashed[i] = fill->units.file_whole[i] && hashed;
	}
	for (uint32_t i = 0; hashed && i < result->segments.segment_count; i++) {
		struct digest_segment *segment = &result->segments.segments[i];
		segment->hash = hash_bytes(segment->blocks, segment->block_count * sizeof(*segment->blocks));
	}
	result->bytes_read = fill->done_bytes;
	result->report.threads = fill->threads;
	result->report.device_count = fill->choice.count;
	memcpy(result->report.devices, fill->choice.devices, sizeof(result->report.devices));
}

static int run(struct fill *fill)
{
	if (allocate(fill) < 0)
		return fail(&fill->error, IPCC_NO_MEMORY, "no memory for the hashes of %s", shown(fill->cp->root));
	fill->ring_error = fill->options->no_ring ? -EPERM : reader_probe();
	int r = run_phase(fill, work_extents);
	if (r == 0 && !fill->options->no_hash)
		r = run_phase(fill, work_rest);
	if (r == 0)
		conclude(fill);
	return r;
}

int fill_run(const struct checkpoint *cp, const struct plan *plan, const struct sink *sink,
	     const struct fill_options *options, struct fill_result *result, struct ipcc_error *err)
{
	static const struct fill_options defaults;
	struct fill_result filled = {0};
	struct fill fill = {
		.cp = cp,
		.plan = plan,
		.sink = sink,
		.options = options != NULL ? options : &defaults,
		.result = &filled,
		.report = &filled.report,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.progress_lock = PTHREAD_MUTEX_INITIALIZER,
	};

	fill.threads = thread_count(fill.options, sink);
	fill.window = window_of(fill.threads);
	choice_init(&fill.choice, fill.threads);
	uint64_t start_ns = work_now_ns();
	guard_install();
	int r = run(&fill);
	guard_remove();
	if (fill.files.cp != NULL)
		shards_fini(&fill.files);
	units_fini(&fill.units);
	choice_fini(&fill.choice);
	free(fill.lanes);
	pthread_mutex_destroy(&fill.lock);
	pthread_mutex_destroy(&fill.progress_lock);
	if (r != 0) {
		fill_result_fini(&filled);
		if (err != NULL)
			*err = fill.error;
		return r;
	}
	filled.report.duration_ns = work_now_ns() - start_ns;
	*result = filled;
	return 0;
}
