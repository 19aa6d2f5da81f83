/* File descriptors and the rules for memfds, met with every other kind of fd that a peer might send. */
#include "manifest/fd.h"
#include "tests/unit/leaks.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(manifest_fd, .init = leaks_before, .fini = leaks_after, .timeout = 20);

#define ALL_SEALS (F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)

static int sealed_memfd(uint64_t bytes)
{
	int fd = memfd_new("test", bytes);
	cr_assert_geq(fd, 0);
	cr_assert_eq(memfd_seal(fd), 0);
	return fd;
}

static void assert_refused(int fd, const char *reason)
{
	struct memfd_facts facts = {.bytes = 4711};
	struct ipcc_error err = {0};

	cr_assert_eq(memfd_check(fd, "segment 3", &facts, &err), IPCC_INVALID);
	cr_assert_not_null(strstr(err.message, "segment 3"), "%s", err.message);
	cr_assert_not_null(strstr(err.message, reason), "%s", err.message);
	cr_assert_eq(facts.bytes, 4711, "an output is untouched on failure");
}

static int reopened(int fd, int flags)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int again = open(path, flags | O_CLOEXEC);
	cr_assert_geq(again, 0, "%s", strerror(errno));
	return again;
}

/* A file of the page cache that nobody else sees. */
static int regular_file(const char *folder)
{
	int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0, "%s: %s", folder, strerror(errno));
	return fd;
}

Test(manifest_fd, closing_leaves_minus_one_and_errno_as_it_was)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC), copy = fd;

	errno = EXDEV;
	fd_close(&fd);
	cr_assert_eq(fd, -1);
	cr_assert_eq(fcntl(copy, F_GETFD), -1);
	errno = EXDEV;
	fd_close(&fd);
	cr_assert_eq(errno, EXDEV);
}

Test(manifest_fd, a_cleanup_variable_closes_unless_its_fd_was_taken)
{
	int kept, closed;
	{
		cleanup_fd int a = open("/dev/null", O_RDONLY | O_CLOEXEC);
		cleanup_fd int b = open("/dev/null", O_RDONLY | O_CLOEXEC);
		cleanup_free char *text = malloc(10);
		cr_assert_not_null(text);
		closed = a;
		kept = fd_take(&b);
		cr_assert_eq(b, -1);
	}
	cr_assert_eq(fcntl(closed, F_GETFD), -1);
	cr_assert_neq(fcntl(kept, F_GETFD), -1);
	fd_close(&kept);
}

Test(manifest_fd, exact_reads_and_writes_reach_their_offset)
{
	cleanup_fd int fd = regular_file("/tmp");
	char text[6] = "";

	cr_assert_eq(fd_write_exact(fd, "hello", 5, 1000), 0);
	cr_assert_eq(fd_read_exact(fd, text, 5, 1000), 0);
	cr_assert_str_eq(text, "hello");
	cr_assert_eq(fd_read_exact(fd, text, 0, 1 << 20), 0);
}

Test(manifest_fd, an_early_end_is_told_from_an_error)
{
	cleanup_fd int fd = regular_file("/tmp");
	cleanup_fd int read_only = reopened(fd, O_RDONLY);
	char text[6];

	cr_assert_eq(fd_write_exact(fd, "hello", 5, 0), 0);
	cr_assert_eq(fd_read_exact(fd, text, 6, 0), -ENODATA);
	cr_assert_eq(fd_read_exact(-1, text, 6, 0), -EBADF);
	cr_assert_eq(fd_write_exact(read_only, text, 1, 0), -EBADF);
}

Test(manifest_fd, a_new_memfd_is_cloexec_and_has_all_its_pages)
{
	cleanup_fd int fd = memfd_new("test", 1 << 20);
	struct stat st;

	cr_assert_geq(fd, 0);
	cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_eq(st.st_size, 1 << 20);
	cr_assert_geq(st.st_blocks * 512, 1 << 20);
}

Test(manifest_fd, an_impossible_size_is_an_error_and_no_fd)
{
	cr_assert_eq(memfd_new("test", UINT64_MAX), -EFBIG);
	cr_assert_eq(memfd_new("test", INT64_MAX), -ENOMEM);
	cr_assert_eq(memfd_new("test", (uint64_t)1 << 50), -ENOMEM);
	char name[300];
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	cr_assert_eq(memfd_new(name, 1), -EINVAL);
}

Test(manifest_fd, a_sealed_memfd_passes_and_says_what_it_is)
{
	cleanup_fd int fd = sealed_memfd(12345);
	struct memfd_facts facts;
	struct stat st;

	cr_assert_eq(memfd_check(fd, "segment 3", &facts, NULL), 0);
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_eq(facts.bytes, 12345);
	cr_assert_eq(facts.device, st.st_dev);
	cr_assert_eq(facts.inode, st.st_ino);
}

Test(manifest_fd, an_empty_sealed_memfd_is_a_memfd)
{
	cleanup_fd int fd = sealed_memfd(0);
	struct memfd_facts facts;

	cr_assert_eq(memfd_check(fd, "segment 3", &facts, NULL), 0);
	cr_assert_eq(facts.bytes, 0);
}

Test(manifest_fd, a_sealed_memfd_reopened_for_reading_cannot_be_proven_whole)
{
	cleanup_fd int fd = sealed_memfd(4096);
	cleanup_fd int again = reopened(fd, O_RDONLY);
	struct memfd_facts facts;
	struct ipcc_error err = {0};

	cr_assert_eq(memfd_check(again, "segment 3", &facts, &err), IPCC_INVALID);
	cr_assert_not_null(strstr(err.message, "open for reading and writing"), "%s", err.message);
}

/* Pages behind the end in the place of a hole: the sum is right, and the reader would still allocate. */
Test(manifest_fd, pages_behind_the_end_do_not_hide_a_hole)
{
	cleanup_fd int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct memfd_facts facts;
	struct ipcc_error err = {0};

	cr_assert_eq(ftruncate(fd, 16384), 0);
	cr_assert_eq(fallocate(fd, FALLOC_FL_KEEP_SIZE, 16384, 16384), 0);
	cr_assert_eq(memfd_seal(fd), 0);
	cr_assert_eq(memfd_check(fd, "segment 3", &facts, &err), IPCC_INVALID);
	cr_assert_not_null(strstr(err.message, "is sparse"), "%s", err.message);
}

Test(manifest_fd, much_memory_behind_the_end_is_refused)
{
	cleanup_fd int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct memfd_facts facts;
	struct ipcc_error err = {0};

	cr_assert_eq(fallocate(fd, 0, 0, 4096), 0);
	cr_assert_eq(fallocate(fd, FALLOC_FL_KEEP_SIZE, 4096, 8 << 20), 0);
	cr_assert_eq(memfd_seal(fd), 0);
	cr_assert_eq(memfd_check(fd, "segment 3", &facts, &err), IPCC_INVALID);
	cr_assert_not_null(strstr(err.message, "behind its end"), "%s", err.message);
}

Test(manifest_fd, a_sealed_memfd_cannot_be_changed)
{
	cleanup_fd int fd = sealed_memfd(4096);

	cr_assert_eq(fd_write_exact(fd, "x", 1, 0), -EPERM);
	cr_assert_neq(ftruncate(fd, 0), 0);
	cr_assert_neq(ftruncate(fd, 8192), 0);
	cr_assert_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	cr_assert_eq(memfd_seal(fd), -EPERM, "not even its seals");
}

Test(manifest_fd, sealing_waits_for_nobody_who_has_it_mapped_for_writing)
{
	cleanup_fd int fd = memfd_new("test", 4096);
	void *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	cr_assert_neq(map, MAP_FAILED);
	cr_assert_eq(memfd_seal(fd), -EBUSY);
	munmap(map, 4096);
	cr_assert_eq(memfd_seal(fd), 0);
}

Test(manifest_fd, a_number_that_is_no_open_fd_is_refused)
{
	assert_refused(-1, "not open");
	assert_refused(999, "not open");
}

Test(manifest_fd, pipes_and_sockets_are_refused_without_waiting)
{
	int pipes[2], sockets[2];

	cr_assert_eq(pipe2(pipes, O_CLOEXEC), 0);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
	assert_refused(pipes[0], "not a memfd");
	assert_refused(pipes[1], "writing only");
	assert_refused(sockets[0], "not a memfd");
	for (int i = 0; i < 2; i++) {
		fd_close(&pipes[i]);
		fd_close(&sockets[i]);
	}
}

Test(manifest_fd, files_folders_and_devices_are_refused)
{
	cleanup_fd int file = regular_file("/tmp");
	cleanup_fd int folder = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup_fd int device = open("/dev/null", O_RDWR | O_CLOEXEC);

	assert_refused(file, "not a memfd");
	assert_refused(folder, "not a memfd");
	assert_refused(device, "not a memfd");
}

Test(manifest_fd, a_file_of_a_tmpfs_is_no_memfd_that_can_be_trusted)
{
	cleanup_fd int file = regular_file("/dev/shm");

	cr_assert_eq(ftruncate(file, 4096), 0);
	assert_refused(file, "segment 3");
}

Test(manifest_fd, a_path_fd_is_refused)
{
	cleanup_fd int fd = sealed_memfd(4096);
	cleanup_fd int path = reopened(fd, O_PATH);

	assert_refused(path, "O_PATH");
}

Test(manifest_fd, a_memfd_that_cannot_be_read_is_refused)
{
	cleanup_fd int fd = memfd_new("test", 4096);
	cleanup_fd int write_only = reopened(fd, O_WRONLY);

	cr_assert_eq(memfd_seal(fd), 0);
	assert_refused(write_only, "writing only");
}

Test(manifest_fd, an_unsealed_memfd_is_refused_and_the_seals_are_named)
{
	cleanup_fd int fd = memfd_new("test", 4096);

	assert_refused(fd, "seals WRITE, GROW, SHRINK, SEAL");
}

Test(manifest_fd, every_single_seal_is_needed)
{
	static const struct {
		int seal;
		const char *reason;
	} seals[] = {
		{F_SEAL_WRITE, "seals WRITE,"},
		{F_SEAL_GROW, "seals GROW,"},
		{F_SEAL_SHRINK, "seals SHRINK,"},
		{F_SEAL_SEAL, "seals SEAL,"},
	};

	for (size_t i = 0; i < sizeof(seals) / sizeof(seals[0]); i++) {
		cleanup_fd int fd = memfd_new("test", 4096);
		cr_assert_eq(fcntl(fd, F_ADD_SEALS, ALL_SEALS & ~seals[i].seal), 0);
		assert_refused(fd, seals[i].reason);
	}
}

Test(manifest_fd, a_memfd_that_was_made_without_sealing_is_refused)
{
	cleanup_fd int fd = memfd_create("test", MFD_CLOEXEC);

	cr_assert_eq(ftruncate(fd, 4096), 0);
	assert_refused(fd, "seals WRITE, GROW, SHRINK,");
}

Test(manifest_fd, a_sealed_memfd_with_a_hole_is_refused)
{
	cleanup_fd int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	cr_assert_eq(ftruncate(fd, 1 << 20), 0);
	cr_assert_eq(fd_write_exact(fd, "x", 1, 0), 0);
	cr_assert_eq(memfd_seal(fd), 0);
	assert_refused(fd, "sparse");
}
