/*
 * The loader without a broker, and what it is compared with, for tests/bench/loader.py. Each prints one JSON object with
 * the bytes and the seconds; what is timed begins with fresh memory and ends with the last byte in its place.
 *
 *	loader fill PATH [--io HOW] [--threads N] [--no-hash] [--no-ring] [--device NAME]	fill segments, as `ipc-cache load`
 *		does; of a GPU, its context and its segments are there before the time begins
 *	loader copy PATH	two threads copy mappings of the files into mapped memory of the same kind as the segments
 *	loader read PATH	two threads read the files with preadv, 4 MiB apiece, into memory that is there already
 *	loader direct PATH	eight do so with O_DIRECT
 *	loader move PATH	two threads read with O_DIRECT, 4 MiB apiece, and write that to segments: the least that a load
 *		without hashing does
 *	loader plan PATH	open and plan, nothing else
 *	loader evict PATH	drop the files from the page cache; "resident" is the percentage that is left
 *	loader cache PATH	read them into it
 *	loader touch PATH	use twice as much memory as the files have, and free it: a virtual machine's host takes back what
 *		has been free for seconds, and the next one to use it would wait for the host
 */
#include "loader/device/device.h"
#include "loader/fill.h"
#include "loader/residency.h"
#include "manifest/fd.h"
#include "manifest/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define BLOCK HASH_BLOCK_BYTES

static struct checkpoint cp;
static struct plan plan;
static struct device_segment *segments;
static const struct device *device;
static char device_name[DEVICE_NAME_BYTES] = DEVICE_HOST;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void must(int failed, const char *what, const struct ipcc_error *err)
{
	if (!failed)
		return;
	fprintf(stderr, "%s: %s\n", what, err != NULL ? err->message : strerror(errno));
	exit(1);
}

static void create_segments(void)
{
	struct ipcc_error err;
	segments = calloc(plan.segment_count, sizeof(*segments));
	for (uint32_t i = 0; i < plan.segment_count; i++) {
		must(device->create(device_name, "bench", plan.segment_bytes[i], &segments[i], &err), "create", &err);
		must(device->clear != NULL && device->clear(&segments[i], &err) != 0, "clear", &err);
	}
}

static void print_result(double seconds, uint64_t bytes, const char *more)
{
	struct rusage usage;
	getrusage(RUSAGE_SELF, &usage);
	printf("{\"seconds\": %.6f, \"bytes\": %llu, \"max_rss\": %ld%s}\n", seconds, (unsigned long long)bytes,
	       usage.ru_maxrss * 1024, more);
}

/* ---- fill ---- */

static int sink_write(void *context, uint32_t segment, uint64_t offset, const void *from, uint64_t bytes,
		      struct ipcc_error *err)
{
	(void)context;
	return device->write(&segments[segment], offset, from, bytes, err);
}

static int sink_read(void *context, uint32_t segment, uint64_t offset, void *to, uint64_t bytes, struct ipcc_error *err)
{
	(void)context;
	return device->read(&segments[segment], offset, to, bytes, err);
}

static int sink_send(void *context, struct device_window *window, uint32_t segment, uint64_t offset, const void *from,
		     uint64_t bytes, struct ipcc_error *err)
{
	(void)context;
	return device->window_send(window, &segments[segment], offset, from, bytes, err);
}

/* A GPU's context, and segments of sizes that it takes. */
static void use_device(const char *text)
{
	struct ipcc_error err;
	uint64_t granularity;
	must(device_resolve(text, device_name, &err), text, &err);
	device = device_find(device_name, &err);
	must(device->granularity(device_name, &granularity, &err), text, &err);
	must(plan_round(&plan, granularity, &err), text, &err);
	must(device->open(device_name, &err), text, &err);
}

static void fill(int argc, char **argv)
{
	static const char *const ways[] = {"auto", "direct", "buffered", "mmap"};
	struct sink sink = {.write = sink_write, .read = sink_read};
	struct fill_options options = {0};
	struct fill_result result = {0};
	struct ipcc_error err;
	char more[512];

	for (int i = 0; i < argc; i++) {
		if (strcmp(argv[i], "--no-hash") == 0)
			options.no_hash = true;
		else if (strcmp(argv[i], "--no-ring") == 0)
			options.no_ring = true;
		else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
			options.threads = (unsigned)atoi(argv[++i]);
		else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc)
			use_device(argv[++i]);
		for (int way = 0; strcmp(argv[i], "--io") == 0 && i + 1 < argc && way < 4; way++)
			if (strcmp(argv[i + 1], ways[way]) == 0)
				options.io = (enum fill_io)way;
	}
	if (device->window_open != NULL) {
		create_segments();
		sink.device = device;
		sink.device_name = device_name;
		sink.send = sink_send;
	}
	double start = now();
	if (segments == NULL)
		create_segments();
	must(fill_run(&cp, &plan, &sink, &options, &result, &err), "fill", &err);
	double seconds = now() - start;
	uint64_t huge = 0;
	for (uint32_t i = 0; i < plan.segment_count; i++)
		huge += device->huge_bytes(&segments[i]);
	const struct fill_report *r = &result.report;
	snprintf(more, sizeof(more),
		 ", \"mapped\": %llu, \"buffered\": %llu, \"direct\": %llu, \"ring\": %d, \"registered\": %d, "
		 "\"pool\": %llu, \"huge\": %llu, \"threads\": %u, \"pinned\": %d, \"rates\": [%llu, %llu], \"way\": "
		 "\"%s\"",
		 (unsigned long long)r->path_bytes[PATH_MAPPED], (unsigned long long)r->path_bytes[PATH_BUFFERED],
		 (unsigned long long)r->path_bytes[PATH_DIRECT], r->ring, r->registered,
		 (unsigned long long)r->pool_bytes, (unsigned long long)huge, r->threads, r->unpinned[0] == '\0',
		 (unsigned long long)r->devices[0].rates[WAY_DIRECT],
		 (unsigned long long)r->devices[0].rates[WAY_BUFFERED],
		 !r->devices[0].decided		   ? "undecided"
		 : r->devices[0].way == WAY_DIRECT ? "direct"
						   : "buffered");
	print_result(seconds, plan.tensor_bytes, more);
	fill_result_fini(&result);
}

/* ---- ceilings ---- */

enum way_up { COPY, READ, DIRECT, MOVE, WAYS_UP };

static const char *const ways_up[] = {"copy", "read", "direct", "move"};

struct ceiling {
	enum way_up way;
	uint8_t *to; /* read: memory of each file in turn */
	const uint8_t **maps;
	int *fds;
	uint64_t *starts; /* of each file, in blocks */
	uint64_t next, blocks;
};

static void read_block(const struct ceiling *c, uint32_t file, uint64_t begin, uint64_t bytes, uint8_t *at)
{
	uint64_t end = begin + bytes;
	struct iovec to = {at, c->way == READ ? bytes : BLOCK};
	while (begin < end) {
		ssize_t got = preadv(c->fds[file], &to, 1, (off_t)begin);
		must(got <= 0, "preadv", NULL);
		to.iov_base = (uint8_t *)to.iov_base + got;
		to.iov_len -= (size_t)got;
		begin += (uint64_t)got;
	}
}

static void put_block(const struct ceiling *c, uint32_t file, uint64_t begin, uint64_t bytes, const uint8_t *from)
{
	struct ipcc_error err;
	/* Into the segment that the block's first planned byte goes to; a little of other tensors' places is as good. */
	for (uint32_t i = 0; i < plan.read_count; i++) {
		const struct plan_read *read = &plan.reads[i];
		uint64_t end = read->file_offset + read->bytes;
		if (read->file != file || end <= begin || read->file_offset >= begin + bytes)
			continue;
		uint64_t first = read->file_offset > begin ? read->file_offset : begin;
		uint64_t last = end < begin + bytes ? end : begin + bytes;
		uint64_t offset = read->offset + (first - read->file_offset);
		if (c->way == COPY)
			memcpy((uint8_t *)segments[read->segment].address + offset, from + (first - begin),
			       last - first);
		else
			must(device->write(&segments[read->segment], offset, from + (first - begin), last - first,
					   &err),
			     "write", &err);
	}
}

/* `buffer`: the thread's own, of a block. */
static void do_block(struct ceiling *c, uint32_t file, uint64_t begin, uint64_t bytes, uint64_t place, uint8_t *buffer)
{
	if (c->way == COPY) {
		put_block(c, file, begin, bytes, c->maps[file] + begin);
		return;
	}
	read_block(c, file, begin, bytes, c->way == MOVE ? buffer : c->to + place);
	if (c->way == MOVE)
		put_block(c, file, begin, bytes, buffer);
}

static void *ceiling_thread(void *argument)
{
	struct ceiling *c = argument;
	uint64_t i;
	uint8_t *buffer = NULL;
	if (c->way == MOVE) {
		buffer = aligned_alloc(BLOCK, BLOCK);
		must(buffer == NULL, "a buffer", NULL);
		madvise(buffer, BLOCK, MADV_HUGEPAGE);
	}
	while ((i = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)) < c->blocks) {
		uint32_t file = 0;
		while (file + 1 < cp.file_count && c->starts[file + 1] <= i)
			file++;
		uint64_t begin = (i - c->starts[file]) * BLOCK, size = cp.files[file].header.source.bytes;
		do_block(c, file, begin, size - begin < BLOCK ? size - begin : BLOCK, i * BLOCK, buffer);
	}
	free(buffer);
	return NULL;
}

#define MOST_THREADS 8

static void ceiling(enum way_up way)
{
	struct ceiling c = {.way = way};
	struct ipcc_error err;
	pthread_t others[MOST_THREADS];
	unsigned count = way == DIRECT ? MOST_THREADS - 1 : 1;

	c.fds = calloc(cp.file_count, sizeof(*c.fds));
	c.maps = calloc(cp.file_count, sizeof(*c.maps));
	c.starts = calloc(cp.file_count, sizeof(*c.starts));
	for (uint32_t i = 0; i < cp.file_count; i++) {
		c.starts[i] = c.blocks;
		c.blocks += hash_block_count(cp.files[i].header.source.bytes);
	}
	if (way == READ || way == DIRECT)
		c.to = mmap(NULL, c.blocks * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
			    -1, 0);
	double start = now();
	if (way == COPY || way == MOVE)
		create_segments();
	for (uint32_t i = 0; i < cp.file_count; i++) {
		must(checkpoint_open_file(&cp, i, &c.fds[i], &err), "open", &err);
		must((way == DIRECT || way == MOVE) && fcntl(c.fds[i], F_SETFL, O_DIRECT) != 0, "O_DIRECT", NULL);
		if (way == COPY)
			c.maps[i] = mmap(NULL, cp.files[i].header.source.bytes, PROT_READ, MAP_SHARED, c.fds[i], 0);
	}
	for (unsigned i = 0; i < count; i++)
		pthread_create(&others[i], NULL, ceiling_thread, &c);
	ceiling_thread(&c);
	for (unsigned i = 0; i < count; i++)
		pthread_join(others[i], NULL);
	print_result(now() - start, plan.tensor_bytes, "");
}

/* ---- the page cache ---- */

static void each_file(bool evict)
{
	uint64_t resident = 0, total = 0;
	struct ipcc_error err;
	char more[64];
	void *buffer = malloc(BLOCK);

	for (uint32_t i = 0; i < cp.file_count; i++) {
		uint64_t size = cp.files[i].header.source.bytes;
		int fd = -1;
		must(checkpoint_open_file(&cp, i, &fd, &err), "open", &err);
		if (evict) {
			fdatasync(fd);
			posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		}
		for (uint64_t at = 0; !evict && at < size; at += BLOCK)
			must(pread(fd, buffer, BLOCK, (off_t)at) < 0, "pread", NULL);
		resident += residency_percent(fd, 0, size, false) * (size / 100);
		total += size;
		close(fd);
	}
	free(buffer);
	snprintf(more, sizeof(more), ", \"resident\": %.1f", (double)resident * 100 / (double)total);
	print_result(0, total, more);
}

static void touch(void)
{
	uint64_t bytes = plan.tensor_bytes * 2;
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(memory == MAP_FAILED, "mmap", NULL);
	madvise(memory, bytes, MADV_HUGEPAGE);
	madvise(memory, bytes, MADV_POPULATE_WRITE);
	munmap(memory, bytes);
	print_result(0, bytes, "");
}

int main(int argc, char **argv)
{
	struct ipcc_error err;
	if (argc < 3) {
		fputs("loader fill|copy|read|direct|move|plan|evict|cache|touch PATH ...\n", stderr);
		return 2;
	}
	unsigned way = 0;
	while (way < WAYS_UP && strcmp(argv[1], ways_up[way]) != 0)
		way++;
	double start = now();
	device = device_find(DEVICE_HOST, &err);
	must(checkpoint_open(&cp, argv[2], &err), argv[2], &err);
	must(plan_init_checkpoint(&plan, &cp, NULL, 0, &err), argv[2], &err);
	if (strcmp(argv[1], "fill") == 0)
		fill(argc - 3, argv + 3);
	else if (way < WAYS_UP)
		ceiling(way);
	else if (strcmp(argv[1], "plan") == 0)
		print_result(now() - start, plan.tensor_bytes, "");
	else if (strcmp(argv[1], "touch") == 0)
		touch();
	else
		each_file(argv[1][0] == 'e');
	plan_fini(&plan);
	checkpoint_fini(&cp);
	return 0;
}
