/* The loader's ways to bytes: readers, the page cache, guarded mappings, and the choice between them. */
#include "loader/choice.h"
#include "loader/guard.h"
#include "loader/reader.h"
#include "loader/residency.h"
#include "tests/unit/leaks.h"
#include "tests/unit/loader_files.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES	   ((size_t)(3 << 20) + 777)
#define BUFFER	   ((uint64_t)1 << 20)
#define PATTERN(i) ((uint8_t)((i)*2654435761u >> 13))

TestSuite(loader_io, .init = leaks_before, .fini = leaks_after);

/* A file of BYTES bytes, open for reading. */
static int make_file(struct files *files, int flags)
{
	uint8_t *bytes = malloc(BYTES);

	files_init(files);
	for (size_t i = 0; i < BYTES; i++)
		bytes[i] = PATTERN(i);
	files_write(files, "f", bytes, BYTES);
	free(bytes);
	int fd = open(files_path(files, "f"), O_RDWR | O_CLOEXEC | flags);
	cr_assert_geq(fd, 0);
	return fd;
}

static void expect_bytes(const uint8_t *from, uint64_t offset, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i++)
		cr_assert_eq(from[i], PATTERN(offset + i), "byte %lu", (unsigned long)(offset + i));
}

static void read_all(const struct reader_kind *kind, int flags)
{
	struct files files;
	int fd = make_file(&files, flags);
	struct pool pool;
	cr_assert_eq(pool_init(&pool, 3, BUFFER), 0);
	struct reader *reader = reader_new(kind, &pool);

	cr_assert_not_null(reader, "%s", strerror(errno));
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned slot = 0; slot < 3; slot++)
			reader_start(reader, slot, fd, slot * BUFFER, BUFFER);
		for (unsigned slot = 3; slot-- > 0;) {
			cr_assert_eq(reader_wait(reader, slot), (ssize_t)BUFFER);
			expect_bytes(reader_buffer(reader, slot), slot * BUFFER, BUFFER);
		}
	}
	reader_start(reader, 1, fd, 3 * BUFFER, 4096);
	cr_assert_eq(reader_wait(reader, 1), 777, "the end of the file");
	reader_start(reader, 0, fd, 4 * BUFFER, 4096);
	cr_assert_eq(reader_wait(reader, 0), 0);
	reader_start(reader, 2, -1, 0, 4096);
	cr_assert_eq(reader_wait(reader, 2), -EBADF);
	/* Freed with a read under way. */
	reader_start(reader, 0, fd, 0, BUFFER);
	reader_free(reader);
	pool_fini(&pool);
	close(fd);
	files_fini(&files);
}

Test(loader_io, a_ring_reads)
{
	if (reader_probe() != 0)
		cr_skip_test("io_uring cannot be used here");
	read_all(&reader_ring, 0);
	read_all(&reader_ring, O_DIRECT);
}

Test(loader_io, threads_read_the_same)
{
	read_all(&reader_threads, 0);
	read_all(&reader_threads, O_DIRECT);
}

Test(loader_io, a_number_that_is_another_file_now_is_read_as_that)
{
	struct files files;
	int fd = make_file(&files, 0);
	struct pool pool;
	cr_assert_eq(pool_init(&pool, 1, BUFFER), 0);
	struct reader *reader = reader_new(reader_probe() == 0 ? &reader_ring : &reader_threads, &pool);

	reader_start(reader, 0, fd, 0, 4096);
	cr_assert_eq(reader_wait(reader, 0), 4096);
	files_write(&files, "g", "other", 5);
	int other = open(files_path(&files, "g"), O_RDONLY | O_CLOEXEC);
	cr_assert_eq(dup3(other, fd, O_CLOEXEC), fd);
	reader_start(reader, 0, fd, 0, 4096);
	cr_assert_eq(reader_wait(reader, 0), 5);
	cr_assert_eq(memcmp(reader_buffer(reader, 0), "other", 5), 0);
	reader_free(reader);
	pool_fini(&pool);
	close(other);
	close(fd);
	files_fini(&files);
}

Test(loader_io, residency_is_told_and_sampled)
{
	struct files files;
	int fd = make_file(&files, 0);

	cr_assert_eq(residency_percent(fd, 0, BYTES, false), 100);
	cr_assert_eq(residency_percent(fd, 0, BYTES, true), 100);
	cr_assert_eq(fdatasync(fd), 0);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	unsigned left = residency_percent(fd, 0, BYTES, false);
	if (left != 0)
		cr_skip_test("this file system keeps its pages");
	cr_assert_eq(residency_percent(fd, 0, BYTES, true), 0);
	usleep(50000);
	cr_assert_leq(residency_percent(fd, 0, BYTES, false), 5, "the sample brings in a few pages, no more");
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	char *bytes = malloc(BYTES);
	cr_assert_eq(pread(fd, bytes, BYTES, 0), (ssize_t)BYTES);
	free(bytes);
	posix_fadvise(fd, 3 << 19, 0, POSIX_FADV_DONTNEED);
	unsigned half = residency_percent(fd, 0, BYTES, false), sampled = residency_percent(fd, 0, BYTES, true);
	cr_assert(half >= 45 && half <= 55, "%u", half);
	cr_assert(sampled >= 35 && sampled <= 65, "%u", sampled);
	cr_assert_eq(residency_percent(fd, 0, BYTES / 4, false), 100);
	close(fd);
	files_fini(&files);
}

static int sum(void *context)
{
	const volatile uint8_t *at = *(uint8_t **)context;
	int total = 0;

	for (size_t i = 0; i < BYTES; i += 4096)
		total += at[i];
	return total > 0 ? 7 : 8;
}

Test(loader_io, a_truncated_mapping_is_an_error_and_no_death)
{
	struct files files;
	int fd = make_file(&files, 0);
	void *map = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
	struct sigaction before, after;

	sigaction(SIGBUS, NULL, &before);
	guard_install();
	guard_install();
	cr_assert_eq(guard_run(map, BYTES, sum, &map), 7);
	cr_assert_eq(ftruncate(fd, 10000), 0);
	cr_assert_eq(guard_run(map, BYTES, sum, &map), -EFAULT);
	cr_assert_eq(guard_run(map, BYTES, sum, &map), -EFAULT, "again");
	guard_remove();
	guard_remove();
	sigaction(SIGBUS, NULL, &after);
	cr_assert_eq((void *)before.sa_handler, (void *)after.sa_handler);
	munmap(map, BYTES);
	close(fd);
	files_fini(&files);
}

Test(loader_io, a_fault_elsewhere_ends_the_process_as_before)
{
	struct files files;
	int fd = make_file(&files, 0), status;
	void *map = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);

	cr_assert_eq(ftruncate(fd, 0), 0);
	pid_t child = fork();
	if (child == 0) {
		signal(SIGBUS, SIG_DFL);
		guard_install();
		sum(&map);
		_exit(0);
	}
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS, "status %#x", (unsigned)status);
	munmap(map, BYTES);
	close(fd);
	files_fini(&files);
}

/* Units of 4 MB, each a way's time apart, of which both workers wait for the disk a part, until it is decided. */
static enum way decide(uint64_t direct_ns, uint64_t buffered_ns, unsigned waited_percent)
{
	const uint64_t ns[] = {direct_ns, buffered_ns};
	struct choice choice;
	uint64_t now = 1;
	bool measuring = true;
	enum way way = WAY_DIRECT;

	choice_init(&choice, 2);
	for (unsigned i = 0; measuring && i < 1000; i++) {
		way = choice_begin(&choice, 42, &measuring);
		now += ns[way];
		choice_done(&choice, 42, way, 4000000, way == WAY_DIRECT ? direct_ns * 2 / 100 * waited_percent : 0,
			    now);
	}
	cr_assert_not(measuring);
	cr_assert_eq(choice.devices[0].rates[WAY_DIRECT] / 1000000, 4000000000 / direct_ns);
	choice_begin(&choice, 43, &measuring);
	cr_assert(measuring, "another device is measured by itself");
	choice_fini(&choice);
	return way;
}

Test(loader_io, the_faster_way_is_chosen_and_the_buffered_one_has_to_be_worth_it)
{
	cr_assert_eq(decide(1000000, 2000000, 80), WAY_DIRECT);
	cr_assert_eq(decide(2000000, 1000000, 80), WAY_BUFFERED);
	cr_assert_eq(decide(1000000, 950000, 80), WAY_DIRECT);
}

Test(loader_io, where_nobody_waits_for_the_disk_no_other_way_is_tried)
{
	cr_assert_eq(decide(2000000, 1000000, 15), WAY_DIRECT);
	cr_assert_eq(decide(2000000, 1000000, 25), WAY_BUFFERED);
}
