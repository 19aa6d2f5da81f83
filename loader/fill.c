/*
 * See fill.h. Two phases of equal workers: the blocks of all files, then the blocks of all segments. A block of a file is
 * read once: straight into the segment where the plan puts it there in one piece, else through the worker's buffer.
 *
 * Invariants: `lock` guards everything that workers share and is held for a few instructions, or for opening a file; the
 * first error wins and ends all work; a file is open from the taking of its first block to the end of its last, so at
 * most one file per worker, and one more, is open. The caller is a worker too, so that a fill needs no thread to succeed.
 */
#include "loader/fill.h"

#include "loader/scatter.h"
#include "loader/shown.h"
#include "manifest/bytes.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

struct open_file {
	int fd;
	uint64_t left;		/* blocks not finished */
	struct hash128 *blocks; /* into fill->file_blocks */
};

struct fill {
	const struct checkpoint *cp;
	const struct plan *plan;
	void *const *segments;
	const struct fill_options *options;
	struct fill_result *result;
	struct open_file *files;
	struct hash128 *file_blocks; /* of all files */
	uint64_t total_bytes;

	pthread_mutex_t lock;
	struct ipcc_error error; /* code 0: none */
	uint32_t next_item;	 /* file, or segment, and ... */
	uint64_t next_block;	 /* ... its block to be taken next */
	uint64_t done_bytes;
	pthread_mutex_t progress_lock; /* held around the callback; taken before `lock` */
};

/* One block of a file or segment. */
struct block {
	uint32_t item;
	uint64_t index;
	uint64_t begin;
	size_t bytes;
	int fd;
};

/* Keeps the first error. */
static void report(struct fill *fill, const struct ipcc_error *error)
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

/* With the lock held: the next block of `count` items of item_bytes() each; false when there is none left. */
static bool next_block(struct fill *fill, uint32_t count, uint64_t (*item_bytes)(const struct fill *, uint32_t),
		       struct block *block)
{
	if (is_over(fill))
		return false;
	while (fill->next_item < count) {
		uint64_t bytes = item_bytes(fill, fill->next_item);
		uint64_t begin = fill->next_block * HASH_BLOCK_BYTES;
		if (begin < bytes) {
			uint64_t left = bytes - begin;
			*block = (struct block){
				.item = fill->next_item,
				.index = fill->next_block++,
				.begin = begin,
				.bytes = left < HASH_BLOCK_BYTES ? left : HASH_BLOCK_BYTES,
				.fd = -1,
			};
			return true;
		}
		fill->next_item++;
		fill->next_block = 0;
	}
	return false;
}

static uint64_t file_bytes(const struct fill *fill, uint32_t i)
{
	return fill->cp->files[i].header.source.bytes;
}

static uint64_t segment_bytes(const struct fill *fill, uint32_t i)
{
	return fill->plan->segment_bytes[i];
}

static bool take_file_block(struct fill *fill, struct block *block)
{
	pthread_mutex_lock(&fill->lock);
	bool taken = next_block(fill, fill->cp->file_count, file_bytes, block);
	if (taken) {
		struct open_file *file = &fill->files[block->item];
		if (block->index == 0) {
			taken = checkpoint_open_file(fill->cp, block->item, &file->fd, &fill->error) == 0;
			if (taken)
				posix_fadvise(file->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
		}
		block->fd = file->fd;
	}
	pthread_mutex_unlock(&fill->lock);
	return taken;
}

static bool take_segment_block(struct fill *fill, struct block *block)
{
	pthread_mutex_lock(&fill->lock);
	bool taken = next_block(fill, fill->plan->segment_count, segment_bytes, block);
	pthread_mutex_unlock(&fill->lock);
	return taken;
}

static int load_block(struct fill *fill, const struct block *block, uint8_t *buffer, struct ipcc_error *err)
{
	const char *path = fill->cp->files[block->item].header.path;
	const struct sink *sink = fill->options->sink;
	uint8_t *target = sink != NULL ? NULL
				       : scatter_target(fill->plan, fill->segments, block->item, block->begin,
							block->bytes);
	uint8_t *to = target != NULL ? target : buffer;

	int r = fd_read_exact(block->fd, to, block->bytes, block->begin);
	if (r == -ENODATA)
		return fail(err, IPCC_INVALID, "%s: changed while being read: it ends before offset %" PRIu64 " now",
			    shown(path), block->begin + block->bytes);
	if (r < 0)
		return fail_errno(err, -r, "%s: reading %zu bytes at offset %" PRIu64, shown(path), block->bytes,
				  block->begin);
	fill->files[block->item].blocks[block->index] = hash_bytes(to, block->bytes);
	if (sink != NULL)
		return scatter_write(fill->plan, sink, block->item, block->begin, block->bytes, buffer, err);
	if (target == NULL)
		scatter_copy(fill->plan, fill->segments, block->item, block->begin, block->bytes, buffer);
	return 0;
}

/* After the last block of a file: is it still the file that was opened? */
static int finish_file(struct fill *fill, uint32_t i, struct ipcc_error *err)
{
	const struct safetensors *header = &fill->cp->files[i].header;
	struct open_file *file = &fill->files[i];
	struct source now;

	int r = source_stat(file->fd, &now);
	fd_close(&file->fd);
	if (r < 0)
		return fail_errno(err, -r, "%s: cannot be examined", shown(header->path));
	const char *difference = source_difference(&header->source, &now);
	if (difference != NULL)
		return fail(err, IPCC_INVALID, "%s: changed while being read: its %s is not what it was",
			    shown(header->path), difference);
	uint64_t count = hash_block_count(header->source.bytes);
	fill->result->files[i] = hash_bytes(file->blocks, count * sizeof(*file->blocks));
	return 0;
}

static int finish_block(struct fill *fill, const struct block *block, struct ipcc_error *err)
{
	const struct fill_options *options = fill->options;

	pthread_mutex_lock(&fill->progress_lock);
	pthread_mutex_lock(&fill->lock);
	fill->done_bytes += block->bytes;
	uint64_t done = fill->done_bytes;
	bool last = --fill->files[block->item].left == 0;
	pthread_mutex_unlock(&fill->lock);
	if (options->progress != NULL)
		options->progress(options->context, done, fill->total_bytes);
	pthread_mutex_unlock(&fill->progress_lock);
	return last ? finish_file(fill, block->item, err) : 0;
}

static void *load_files(void *argument)
{
	struct fill *fill = argument;
	struct ipcc_error error = {0};
	struct block block;
	void *buffer;

	if (posix_memalign(&buffer, 4096, HASH_BLOCK_BYTES) != 0) {
		fail(&error, IPCC_NO_MEMORY, "no memory for a buffer of %" PRIu64 " bytes", HASH_BLOCK_BYTES);
		report(fill, &error);
		return NULL;
	}
	while (take_file_block(fill, &block)) {
		int r = load_block(fill, &block, buffer, &error);
		if (r == 0)
			r = finish_block(fill, &block, &error);
		if (r != 0) {
			report(fill, &error);
			break;
		}
	}
	free(buffer);
	return NULL;
}

/* What is in a sink is read back: the hashes are of what is there, not of what was sent. */
static int hash_sink_block(struct fill *fill, const struct block *block, uint8_t *buffer, struct ipcc_error *err)
{
	const struct sink *sink = fill->options->sink;

	if (buffer == NULL)
		return fail(err, IPCC_NO_MEMORY, "no memory for a buffer of %" PRIu64 " bytes", HASH_BLOCK_BYTES);
	int r = sink->read(sink->context, block->item, block->begin, buffer, block->bytes, err);
	if (r == 0)
		fill->result->segments[block->item].blocks[block->index] = hash_bytes(buffer, block->bytes);
	return r;
}

static void *hash_segments(void *argument)
{
	struct fill *fill = argument;
	struct ipcc_error error = {0};
	struct block block;
	cleanup_free uint8_t *buffer = fill->options->sink != NULL ? malloc(HASH_BLOCK_BYTES) : NULL;

	while (take_segment_block(fill, &block)) {
		if (fill->options->sink == NULL) {
			fill->result->segments[block.item].blocks[block.index] = hash_block(
				fill->segments[block.item], segment_bytes(fill, block.item), block.index);
		} else if (hash_sink_block(fill, &block, buffer, &error) != 0) {
			report(fill, &error);
			break;
		}
	}
	return NULL;
}

static unsigned thread_count(const struct fill_options *options)
{
	if (options->threads != 0)
		return options->threads < FILL_MAX_THREADS ? options->threads : FILL_MAX_THREADS;
	long online = sysconf(_SC_NPROCESSORS_ONLN);
	return online < 1 ? 1 : online < FILL_DEFAULT_THREADS ? (unsigned)online : FILL_DEFAULT_THREADS;
}

/* Runs `worker` in all threads, this one included, until the phase is over. Threads that cannot be created are done
 * without. Returns the error's code. */
static int run_phase(struct fill *fill, void *(*worker)(void *))
{
	pthread_t threads[FILL_MAX_THREADS];
	unsigned wanted = thread_count(fill->options) - 1, created = 0;
	sigset_t all, before;

	fill->next_item = 0;
	fill->next_block = 0;
	/* Signals are the caller's thread's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (created < wanted && pthread_create(&threads[created], NULL, worker, fill) == 0)
		created++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	worker(fill);
	for (unsigned i = 0; i < created; i++)
		pthread_join(threads[i], NULL);
	return fill->error.code;
}

void fill_result_fini(struct fill_result *result)
{
	for (uint32_t i = 0; i < result->segment_count; i++)
		free(result->segments[i].blocks);
	free(result->segments);
	free(result->files);
	*result = (struct fill_result){0};
}

/* Everything that is written later is allocated here. */
static int allocate(struct fill *fill)
{
	const struct checkpoint *cp = fill->cp;
	const struct plan *plan = fill->plan;
	struct fill_result *result = fill->result;
	uint64_t blocks = 0;

	fill->files = calloc((size_t)cp->file_count + 1, sizeof(*fill->files));
	result->files = calloc((size_t)cp->file_count + 1, sizeof(*result->files));
	result->segments = calloc((size_t)plan->segment_count + 1, sizeof(*result->segments));
	if (fill->files == NULL || result->files == NULL || result->segments == NULL)
		return -ENOMEM;
	result->file_count = cp->file_count;
	result->segment_count = plan->segment_count;
	for (uint32_t i = 0; i < cp->file_count; i++)
		blocks += hash_block_count(file_bytes(fill, i));
	fill->file_blocks = calloc(blocks + 1, sizeof(*fill->file_blocks));
	if (fill->file_blocks == NULL)
		return -ENOMEM;
	blocks = 0;
	for (uint32_t i = 0; i < cp->file_count; i++) {
		uint64_t count = hash_block_count(file_bytes(fill, i));
		fill->files[i] = (struct open_file){-1, count, &fill->file_blocks[blocks]};
		blocks += count;
		fill->total_bytes += file_bytes(fill, i);
	}
	for (uint32_t i = 0; i < plan->segment_count; i++) {
		struct fill_segment *segment = &result->segments[i];
		segment->block_count = hash_block_count(plan->segment_bytes[i]);
		segment->blocks = calloc(segment->block_count + 1, sizeof(*segment->blocks));
		if (segment->blocks == NULL)
			return -ENOMEM;
	}
	return 0;
}

static int run(struct fill *fill)
{
	if (allocate(fill) < 0)
		return fail(&fill->error, IPCC_NO_MEMORY, "no memory for the hashes of %s", shown(fill->cp->root));
	int r = run_phase(fill, load_files);
	if (r == 0)
		r = run_phase(fill, hash_segments);
	if (r != 0)
		return r;
	for (uint32_t i = 0; i < fill->result->segment_count; i++) {
		struct fill_segment *segment = &fill->result->segments[i];
		segment->hash = hash_bytes(segment->blocks, segment->block_count * sizeof(*segment->blocks));
	}
	fill->result->bytes_read = fill->done_bytes;
	return 0;
}

int fill_run(const struct checkpoint *cp, const struct plan *plan, void *const *segments,
	     const struct fill_options *options, struct fill_result *result, struct ipcc_error *err)
{
	static const struct fill_options defaults;
	struct fill_result filled = {0};
	struct fill fill = {
		.cp = cp,
		.plan = plan,
		.segments = segments,
		.options = options != NULL ? options : &defaults,
		.result = &filled,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.progress_lock = PTHREAD_MUTEX_INITIALIZER,
	};

	int r = run(&fill);
	/* After an error some files may be open. */
	for (uint32_t i = 0; fill.files != NULL && i < cp->file_count; i++)
		fd_close(&fill.files[i].fd);
	free(fill.files);
	free(fill.file_blocks);
	pthread_mutex_destroy(&fill.lock);
	pthread_mutex_destroy(&fill.progress_lock);
	if (r != 0) {
		fill_result_fini(&filled);
		if (err != NULL)
			*err = fill.error;
		return r;
	}
	*result = filled;
	return 0;
}
