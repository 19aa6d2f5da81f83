/* Fills: bytes, gaps and hashes against a serial computation; changes during the read; cancellation. */
#include "loader/fill.h"
#include "tests/unit/leaks.h"
#include "tests/unit/loader_files.h"
#include "tests/unit/loader_sink.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(loader_fill, .init = leaks_before, .fini = leaks_after);

/* Two shards of 9 and 5 MiB and some: several blocks each, ranges of odd sizes, one large range, an empty tensor. */
#define SHARD_1                                                                                                        \
	"{\"a\":{\"dtype\":\"U8\",\"shape\":[1000003],\"data_offsets\":[0,1000003]},"                                  \
	"\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[1000003,1000003]},"                                  \
	"\"b\":{\"dtype\":\"U8\",\"shape\":[9000000],\"data_offsets\":[1000003,10000003]},"                            \
	"\"c\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[10000003,10000008]}}"
#define SHARD_2                                                                                                        \
	"{\"d\":{\"dtype\":\"U8\",\"shape\":[5000000],\"data_offsets\":[0,5000000]},"                                  \
	"\"f\":{\"dtype\":\"U8\",\"shape\":[77],\"data_offsets\":[5000000,5000077]}}"

/* An open checkpoint of these, its plan, and zeroed memory for its segments. */
struct model {
	struct files files;
	struct checkpoint cp;
	struct plan plan;
	void **segments;
	struct sink sink;
};

static void model_init(struct model *m, uint64_t segment_limit)
{
	struct ipcc_error err = {0};

	files_init(&m->files);
	files_write_tensors(&m->files, "s1", SHARD_1, 10000008, 1);
	files_write_tensors(&m->files, "s2", SHARD_2, 5000077, 2);
	files_write_text(
		&m->files, CHECKPOINT_INDEX,
		"{\"weight_map\":{\"a\":\"s1\",\"b\":\"s1\",\"c\":\"s1\",\"e\":\"s1\",\"d\":\"s2\",\"f\":\"s2\"}}");
	cr_assert_eq(checkpoint_open(&m->cp, m->files.folder, &err), 0, "%s", err.message);
	cr_assert_eq(plan_init_checkpoint(&m->plan, &m->cp, NULL, segment_limit, &err), 0, "%s", err.message);
	m->segments = calloc(m->plan.segment_count, sizeof(*m->segments));
	for (uint32_t i = 0; i < m->plan.segment_count; i++)
		m->segments[i] = calloc(1, m->plan.segment_bytes[i]);
	m->sink = memory_sink(m->segments);
}

static void model_fini(struct model *m)
{
	for (uint32_t i = 0; i < m->plan.segment_count; i++)
		free(m->segments[i]);
	free(m->segments);
	plan_fini(&m->plan);
	checkpoint_fini(&m->cp);
	files_fini(&m->files);
}

/* What the segments should hold, made tensor by tensor from the files. */
static void expect_segments(const struct model *m)
{
	uint8_t *bytes[2];
	size_t lengths[2];

	for (uint32_t i = 0; i < m->cp.file_count; i++)
		bytes[i] = files_read(m->cp.files[i].header.path, &lengths[i]);
	for (uint32_t s = 0; s < m->plan.segment_count; s++) {
		uint8_t *want = calloc(1, m->plan.segment_bytes[s]);
		for (uint32_t i = 0; i < m->cp.tensor_count; i++) {
			const struct plan_place *place = &m->plan.places[i];
			uint32_t file = i >= m->cp.files[1].first_tensor;
			if (place->segment == s)
				memcpy(want + place->offset, bytes[file] + checkpoint_tensor(&m->cp, i)->begin,
				       place->bytes);
		}
		cr_expect_eq(memcmp(want, m->segments[s], m->plan.segment_bytes[s]), 0, "segment %u differs", s);
		free(want);
	}
	free(bytes[0]);
	free(bytes[1]);
}

/* Block by block and over the blocks, with nothing but hash_bytes. */
static struct hash128 serial_hash(const uint8_t *bytes, size_t length, struct hash128 *blocks)
{
	uint64_t count = 0;

	for (size_t at = 0; at < length; at += HASH_BLOCK_BYTES) {
		size_t left = length - at;
		blocks[count++] = hash_bytes(bytes + at, left < HASH_BLOCK_BYTES ? left : HASH_BLOCK_BYTES);
	}
	return hash_bytes(blocks, count * sizeof(*blocks));
}

static void expect_hashes(const struct model *m, const struct fill_result *result)
{
	struct hash128 blocks[16], hash;
	size_t length;

	cr_assert_eq(result->file_count, 2);
	for (uint32_t i = 0; i < 2; i++) {
		uint8_t *bytes = files_read(m->cp.files[i].header.path, &length);
		hash = serial_hash(bytes, length, blocks);
		cr_expect_eq(memcmp(&hash, &result->files[i], sizeof(hash)), 0, "file %u", i);
		free(bytes);
	}
	cr_assert_eq(result->segments.segment_count, m->plan.segment_count);
	for (uint32_t i = 0; i < m->plan.segment_count; i++) {
		const struct digest_segment *segment = &result->segments.segments[i];
		hash = serial_hash(m->segments[i], m->plan.segment_bytes[i], blocks);
		cr_expect_eq(segment->block_count, hash_block_count(m->plan.segment_bytes[i]));
		cr_expect_eq(memcmp(&hash, &segment->hash, sizeof(hash)), 0, "segment %u", i);
		cr_expect_eq(memcmp(blocks, segment->blocks, segment->block_count * sizeof(hash)), 0);
	}
}

struct seen {
	uint64_t calls, last, total;
};

static void count_progress(void *context, uint64_t done, uint64_t total)
{
	struct seen *seen = context;

	cr_assert_gt(done, seen->last);
	*seen = (struct seen){seen->calls + 1, done, total};
}

static void fill_and_check(struct fill_options options, uint64_t segment_limit)
{
	struct model m;
	struct fill_result result = {0};
	struct ipcc_error err = {0};
	struct seen seen = {0};

	options.progress = count_progress;
	options.context = &seen;
	model_init(&m, segment_limit);
	cr_assert_eq(fill_run(&m.cp, &m.plan, &m.sink, &options, &result, &err), 0, "%s", err.message);
	expect_segments(&m);
	expect_hashes(&m, &result);
	cr_assert_eq(result.bytes_read, m.cp.file_bytes);
	cr_assert_eq(seen.last, m.cp.file_bytes);
	cr_assert_eq(seen.total, m.cp.file_bytes);
	cr_assert_eq(seen.calls, 3 + 2);
	fill_result_fini(&result);
	model_fini(&m);
}

Test(loader_fill, one_thread_and_one_segment_give_the_files_bytes_and_hashes)
{
	fill_and_check((struct fill_options){.threads = 1}, 0);
}

Test(loader_fill, many_threads_and_segments_give_the_same)
{
	fill_and_check((struct fill_options){.threads = 6}, 1 << 20);
}

Test(loader_fill, every_way_of_reading_gives_the_same)
{
	for (int io = FILL_AUTO; io <= FILL_MMAP; io++) {
		fill_and_check((struct fill_options){.threads = 2, .io = io}, 0);
		fill_and_check((struct fill_options){.threads = 3, .io = io}, 2 << 20);
	}
}

Test(loader_fill, threads_read_what_a_forbidden_ring_would)
{
	fill_and_check((struct fill_options){.threads = 2, .io = FILL_DIRECT, .no_ring = true}, 0);
	fill_and_check((struct fill_options){.threads = 1, .io = FILL_DIRECT, .no_ring = true}, 1 << 20);
}

Test(loader_fill, the_default_options_do)
{
	struct model m;
	struct fill_result result = {0};
	struct ipcc_error err = {0};

	model_init(&m, 0);
	cr_assert_eq(fill_run(&m.cp, &m.plan, &m.sink, NULL, &result, &err), 0, "%s", err.message);
	expect_segments(&m);
	fill_result_fini(&result);
	model_fini(&m);
}

Test(loader_fill, the_hash_of_a_small_file_is_the_published_one)
{
	/* xxh128sum of the file, then of those 16 bytes. */
	struct files files;
	struct checkpoint cp;
	struct plan plan;
	struct fill_result result = {0};
	struct ipcc_error err = {0};
	char text[HASH_TEXT_BYTES];
	uint64_t memory[32] = {0};
	void *segments[] = {memory};
	const struct sink sink = memory_sink(segments);

	files_init(&files);
	files_write_tensors(&files, "x.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
			    4, 0);
	cr_assert_eq(checkpoint_open(&cp, files.folder, &err), 0, "%s", err.message);
	cr_assert_eq(plan_init_checkpoint(&plan, &cp, NULL, 0, &err), 0);
	cr_assert_eq(fill_run(&cp, &plan, &sink, NULL, &result, &err), 0, "%s", err.message);
	hash_text(&result.files[0], text);
	cr_assert_str_eq(text, "2e5356af785757d67f36f12f68968bd2");
	fill_result_fini(&result);
	plan_fini(&plan);
	checkpoint_fini(&cp);
	files_fini(&files);
}

/* Spoils the file of `path` after the first block that was read. */
struct spoiler {
	const char *path;
	enum { TOUCH, TRUNCATE, REPLACE, APPEND } how;
	unsigned calls;
};

static void spoil(void *context, uint64_t done, uint64_t total)
{
	struct spoiler *s = context;
	char other[600];
	(void)done, (void)total;

	if (s->calls++ != 0)
		return;
	if (s->how == TOUCH) {
		const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000}};
		cr_assert_eq(utimensat(AT_FDCWD, s->path, times, 0), 0);
	} else if (s->how == TRUNCATE) {
		cr_assert_eq(truncate(s->path, 100), 0);
	} else if (s->how == REPLACE) {
		snprintf(other, sizeof(other), "%s.new", s->path);
		close(open(other, O_CREAT | O_WRONLY, 0600));
		cr_assert_eq(rename(other, s->path), 0);
	} else {
		int fd = open(s->path, O_WRONLY | O_APPEND);
		cr_assert_eq(write(fd, "x", 1), 1);
		close(fd);
	}
}

static void expect_spoiled(const char *name, int how, const char *part)
{
	struct model m;
	struct fill_result result = {.file_count = 12345};
	struct ipcc_error err = {0};
	struct spoiler spoiler = {.how = how};
	const struct fill_options options = {.threads = 1, .progress = spoil, .context = &spoiler};

	model_init(&m, 0);
	spoiler.path = m.cp.files[strcmp(name, "s2") == 0].header.path;
	int r = fill_run(&m.cp, &m.plan, &m.sink, &options, &result, &err);
	expect_error(r, &err, IPCC_INVALID, part);
	cr_assert_eq(result.file_count, 12345, "the result is untouched");
	model_fini(&m);
}

Test(loader_fill, a_file_touched_while_it_is_read_fails)
{
	expect_spoiled("s1", TOUCH, "/s1: changed while being read: its modification time");
}

Test(loader_fill, a_file_truncated_while_it_is_read_fails)
{
	expect_spoiled("s1", TRUNCATE, "/s1: changed while being read: it ends before offset 8388608 now");
}

Test(loader_fill, a_file_appended_to_while_it_is_read_fails)
{
	expect_spoiled("s1", APPEND, "/s1: changed while being read: its size");
}

Test(loader_fill, a_file_unlinked_by_a_replacement_while_it_is_read_fails)
{
	expect_spoiled("s1", REPLACE, "/s1: changed while being read: its change time");
}

Test(loader_fill, a_file_replaced_before_it_is_read_fails)
{
	/* It was opened already, to read ahead. */
	expect_spoiled("s2", REPLACE, "/s2: changed while being read: its change time");
}

Test(loader_fill, a_file_deleted_before_it_is_read_is_named)
{
	struct model m;
	struct fill_result result;
	struct ipcc_error err = {0};

	model_init(&m, 0);
	cr_assert_eq(unlink(m.cp.files[1].header.path), 0);
	expect_error(fill_run(&m.cp, &m.plan, &m.sink, NULL, &result, &err), &err, IPCC_NOT_FOUND, "/s2: no such file");
	model_fini(&m);
}

static void cancel_after_one(void *context, uint64_t done, uint64_t total)
{
	(void)done, (void)total;
	atomic_store((atomic_bool *)context, true);
}

Test(loader_fill, a_set_flag_cancels_at_the_next_block)
{
	struct model m;
	struct fill_result result;
	struct ipcc_error err = {0};
	atomic_bool cancel = false;
	const struct fill_options options = {
		.threads = 3, .progress = cancel_after_one, .context = &cancel, .cancel = &cancel};

	model_init(&m, 0);
	expect_error(fill_run(&m.cp, &m.plan, &m.sink, &options, &result, &err), &err, IPCC_CANCELED, "canceled");
	model_fini(&m);
}
