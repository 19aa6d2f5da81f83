/* Fills of a device with windows, which takes the bytes when it is waited for, no sooner: reuse without waiting shows. */
#include "loader/fill.h"
#include "loader/work.h"
#include "manifest/fail.h"
#include "tests/unit/leaks.h"
#include "tests/unit/loader_files.h"
#include "tests/unit/loader_sink.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(loader_window, .init = leaks_before, .fini = leaks_after);

#define TRANSFERS 64

struct device_window {
	uint8_t *address;
	uint64_t bytes;
	unsigned count;
	struct {
		void *to;
		const void *from;
		uint64_t bytes;
	} queue[TRANSFERS];
};

/* How many calls until one fails; 0: none does. */
static atomic_int opened, sent, fail_open, fail_send, fail_wait;

static bool fails(atomic_int *countdown)
{
	return atomic_load(countdown) > 0 && atomic_fetch_sub(countdown, 1) == 1;
}

static int failed(struct ipcc_error *err, const char *what)
{
	*err = (struct ipcc_error){.code = IPCC_FAILED};
	strcpy(err->message, what);
	return IPCC_FAILED;
}

static int window_open(const char *device, void *address, uint64_t bytes, struct device_window **window,
		       struct ipcc_error *err)
{
	cr_assert_str_eq(device, "the device");
	if (fails(&fail_open))
		return failed(err, "no pinning today");
	*window = calloc(1, sizeof(**window));
	**window = (struct device_window){.address = address, .bytes = bytes};
	opened++;
	return 0;
}

static int window_wait(struct device_window *window, struct ipcc_error *err)
{
	for (unsigned i = 0; i < window->count; i++)
		memcpy(window->queue[i].to, window->queue[i].from, window->queue[i].bytes);
	window->count = 0;
	return fails(&fail_wait) ? failed(err, "a transfer failed") : 0;
}

static void window_close(struct device_window *window)
{
	if (window == NULL)
		return;
	opened--;
	free(window);
}

static int send_there(void *context, struct device_window *window, uint32_t segment, uint64_t offset, const void *from,
		      uint64_t bytes, struct ipcc_error *err)
{
	const uint8_t *at = from;

	if (fails(&fail_send))
		return failed(err, "a transfer cannot begin");
	cr_assert(at >= window->address && at + bytes <= window->address + window->bytes);
	cr_assert_lt(window->count, TRANSFERS);
	window->queue[window->count].to = ((uint8_t **)context)[segment] + offset;
	window->queue[window->count].from = from;
	window->queue[window->count++].bytes = bytes;
	sent++;
	return 0;
}

static const struct device device = {
	.window_open = window_open, .window_wait = window_wait, .window_close = window_close};

/* 42 MiB: large tensors, small ones between them, and odd places for all. */
#define HEADER                                                                                                         \
	"{\"a\":{\"dtype\":\"U8\",\"shape\":[20000003],\"data_offsets\":[0,20000003]},"                                \
	"\"b\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[20000003,20000008]},"                                 \
	"\"c\":{\"dtype\":\"U8\",\"shape\":[70000],\"data_offsets\":[20000008,20070008]},"                             \
	"\"d\":{\"dtype\":\"U8\",\"shape\":[2000,12000],\"data_offsets\":[20070008,44070008]}}"
#define DATA_BYTES 44070008

struct model {
	struct files files;
	struct checkpoint cp;
	struct plan plan;
	void **segments;
	struct sink sink;
};

static void model_init(struct model *m, const struct selection *selection)
{
	struct ipcc_error err = {0};

	files_init(&m->files);
	files_write_tensors(&m->files, "x.safetensors", HEADER, DATA_BYTES, 3);
	cr_assert_eq(checkpoint_open(&m->cp, m->files.folder, &err), 0, "%s", err.message);
	cr_assert_eq(plan_init_checkpoint(&m->plan, &m->cp, selection, 16 << 20, &err), 0, "%s", err.message);
	m->segments = calloc(m->plan.segment_count, sizeof(*m->segments));
	for (uint32_t i = 0; i < m->plan.segment_count; i++)
		m->segments[i] = calloc(1, m->plan.segment_bytes[i]);
	m->sink = memory_sink(m->segments);
	m->sink.device = &device;
	m->sink.device_name = "the device";
	m->sink.send = send_there;
	sent = 0;
}

static void model_fini(struct model *m)
{
	cr_expect_eq(opened, 0, "%d windows are open", opened);
	for (uint32_t i = 0; i < m->plan.segment_count; i++)
		free(m->segments[i]);
	free(m->segments);
	plan_fini(&m->plan);
	checkpoint_fini(&m->cp);
	files_fini(&m->files);
}

/* The same as a fill of plain memory on one thread: bytes, hashes of segments and files. */
static void expect_plain(struct model *m, const struct fill_result *result)
{
	const struct fill_options options = {.threads = 1};
	struct fill_result want;
	struct ipcc_error err = {0};
	void **segments = calloc(m->plan.segment_count, sizeof(*segments));

	for (uint32_t i = 0; i < m->plan.segment_count; i++)
		segments[i] = calloc(1, m->plan.segment_bytes[i]);
	const struct sink sink = memory_sink(segments);
	cr_assert_eq(fill_run(&m->cp, &m->plan, &sink, &options, &want, &err), 0, "%s", err.message);
	for (uint32_t i = 0; i < m->plan.segment_count; i++) {
		cr_expect_eq(memcmp(segments[i], m->segments[i], m->plan.segment_bytes[i]), 0, "segment %u", i);
		cr_expect_eq(memcmp(&want.segments.segments[i].hash, &result->segments.segments[i].hash,
				    sizeof(struct hash128)),
			     0, "hash of segment %u", i);
		free(segments[i]);
	}
	cr_expect_eq(memcmp(&want.files[0], &result->files[0], sizeof(want.files[0])), 0);
	free(segments);
	fill_result_fini(&want);
}

static void expect_filled(const struct selection *selection, enum fill_io io, unsigned threads, bool pinned)
{
	struct model m;
	struct fill_result result;
	struct ipcc_error err = {0};
	const struct fill_options options = {.threads = threads, .io = io};

	model_init(&m, selection);
	cr_assert_eq(fill_run(&m.cp, &m.plan, &m.sink, &options, &result, &err), 0, "%s", err.message);
	cr_expect_eq(result.report.unpinned[0] == '\0', pinned, "%s", result.report.unpinned);
	cr_expect_eq(sent > 0, pinned || threads > 1);
	expect_plain(&m, &result);
	fill_result_fini(&result);
	model_fini(&m);
}

Test(loader_window, every_way_of_reading_sends_the_same_bytes)
{
	for (enum fill_io io = FILL_AUTO; io <= FILL_MMAP; io++) {
		for (unsigned threads = 1; threads <= 4; threads++)
			expect_filled(NULL, io, threads, true);
	}
}

Test(loader_window, columns_are_written_and_whole_tensors_are_sent)
{
	const struct selection selection = {.columns = {1, {"d"}}, .rank = 1, .ranks = 3};
	struct model m;
	struct fill_result result;
	struct ipcc_error err = {0};

	model_init(&m, &selection);
	cr_assert_eq(fill_run(&m.cp, &m.plan, &m.sink, NULL, &result, &err), 0, "%s", err.message);
	cr_expect_gt(sent, 0);
	expect_plain(&m, &result);
	fill_result_fini(&result);
	model_fini(&m);
}

Test(loader_window, what_cannot_be_pinned_is_written_and_said)
{
	fail_open = 1;
	expect_filled(NULL, FILL_AUTO, 1, false);
	/* One worker cannot, the others can. */
	fail_open = 2;
	expect_filled(NULL, FILL_AUTO, 3, false);
}

static void expect_failure(const char *message, enum fill_io io)
{
	struct model m;
	struct fill_result result;
	struct ipcc_error err = {0};
	const struct fill_options options = {.threads = 2, .io = io};

	model_init(&m, NULL);
	expect_error(fill_run(&m.cp, &m.plan, &m.sink, &options, &result, &err), &err, IPCC_FAILED, message);
	model_fini(&m);
}

Test(loader_window, a_transfer_that_fails_fails_the_fill)
{
	for (int number = 1; number <= 4; number++) {
		fail_send = number;
		expect_failure("a transfer cannot begin", number % 2 ? FILL_BUFFERED : FILL_DIRECT);
		fail_wait = number;
		expect_failure("a transfer failed", number % 2 ? FILL_DIRECT : FILL_BUFFERED);
	}
}

/* The first window arrives, each other fails in a way of its own. */
static int wait_each(struct device_window *window, struct ipcc_error *err)
{
	static const int codes[] = {IPCC_OK, IPCC_NO_MEMORY, IPCC_FAILED};
	unsigned number = window->count;

	window->count = 0;
	return number == 0 ? 0 : fail(err, codes[number], "window %u failed", number);
}

Test(loader_window, the_first_of_several_failures_is_told_and_all_are_waited_for)
{
	const struct device each = {.window_open = window_open, .window_wait = wait_each, .window_close = window_close};
	struct worker worker = {0};
	struct ipcc_error err = {0};

	cr_assert_eq(pool_init(&worker.pool, 3, 1 << 16), 0);
	for (unsigned i = 0; i < 3; i++) {
		cr_assert_eq(pool_pin(&worker.pool, i, &each, "the device", &err), 0, "%s", err.message);
		worker.pool.windows[i]->count = i;
		worker.pool.sent[i] = true;
	}
	expect_error(work_settle(&worker, &err), &err, IPCC_NO_MEMORY, "window 1 failed");
	for (unsigned i = 0; i < 3; i++)
		cr_expect(!worker.pool.sent[i] && worker.pool.windows[i]->count == 0, "window %u was not waited for",
			  i);
	cr_expect_eq(work_settle(&worker, &err), 0, "it is told once");
	pool_fini(&worker.pool);
	cr_expect_eq(opened, 0);
}

static void truncate_it(void *context, uint64_t done, uint64_t total)
{
	(void)total;
	if (done < DATA_BYTES / 2)
		cr_assert_eq(truncate(context, DATA_BYTES / 2 + (16 << 20)), 0);
}

Test(loader_window, a_truncated_file_is_named_with_its_offset)
{
	for (enum fill_io io = FILL_AUTO; io <= FILL_MMAP; io++) {
		struct model m;
		struct fill_result result;
		struct ipcc_error err = {0};
		model_init(&m, NULL);
		const struct fill_options options = {
			.threads = 2, .io = io, .progress = truncate_it, .context = m.cp.files[0].header.path};
		expect_error(fill_run(&m.cp, &m.plan, &m.sink, &options, &result, &err), &err, IPCC_INVALID,
			     "changed while being read");
		model_fini(&m);
	}
}
