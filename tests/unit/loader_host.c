/* The host device: a segment's life, and what readers may do with it. */
#include "loader/device/device.h"
#include "manifest/fd.h"
#include "tests/unit/leaks.h"
#include "tests/unit/loader_files.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES ((uint64_t)3 << 20)

TestSuite(loader_host, .init = leaks_before, .fini = leaks_after);

static const struct device *host(void)
{
	const struct device *device = device_find(DEVICE_HOST, NULL);
	cr_assert_not_null(device);
	return device;
}

static struct device_segment make(void)
{
	struct device_segment segment = {.fd = -1};
	struct ipcc_error err = {0};

	cr_assert_eq(host()->create(DEVICE_HOST, "test", BYTES, &segment, &err), 0, "%s", err.message);
	return segment;
}

static struct device_segment make_sealed(void)
{
	struct device_segment segment = make();
	struct ipcc_error err = {0};

	memset(segment.address, 0x5a, segment.bytes);
	cr_assert_eq(host()->seal(&segment, &err), 0, "%s", err.message);
	cr_assert_null(segment.address);
	return segment;
}

/* Maps one segment. */
static int map(int fd, uint64_t bytes, enum device_access access, struct device_range **range, struct ipcc_error *err)
{
	struct device_request request = {
		.device = DEVICE_HOST, .fds = &fd, .bytes = &bytes, .count = 1, .access = access};
	return host()->map(&request, range, err);
}

Test(loader_host, a_sealed_segment_has_all_its_pages_written_or_not)
{
	struct device_segment segment = make();
	struct ipcc_error err = {0};
	struct stat st;

	cr_assert_eq(host()->write(&segment, 8192, "x", 1, &err), 0, "%s", err.message);
	cr_assert_eq(host()->seal(&segment, &err), 0, "%s", err.message);
	cr_assert_eq(fstat(segment.fd, &st), 0);
	cr_assert_eq((uint64_t)st.st_size, BYTES);
	cr_assert_geq((uint64_t)st.st_blocks * 512, BYTES);
	host()->destroy(&segment);
}

Test(loader_host, what_is_written_is_in_the_mapping_and_read_back)
{
	struct device_segment segment = make();
	struct ipcc_error err = {0};
	char bytes[9000], back[9000];

	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = (char)(i * 7);
	cr_assert_eq(host()->write(&segment, 1001, bytes, sizeof(bytes), &err), 0, "%s", err.message);
	cr_assert_eq(memcmp((const char *)segment.address + 1001, bytes, sizeof(bytes)), 0);
	cr_assert_eq(((const char *)segment.address)[1000], 0);
	cr_assert_eq(host()->read(&segment, 1001, back, sizeof(back), &err), 0, "%s", err.message);
	cr_assert_eq(memcmp(back, bytes, sizeof(bytes)), 0);
	host()->destroy(&segment);
}

Test(loader_host, a_new_segment_is_zero)
{
	struct device_segment segment = make();

	for (uint64_t i = 0; i < BYTES; i += 4096)
		cr_assert_eq(((const char *)segment.address)[i], 0);
	host()->destroy(&segment);
	host()->destroy(&segment);
	cr_assert_eq(segment.fd, -1);
}

Test(loader_host, a_sealed_segment_is_read_and_never_mapped_writable)
{
	struct device_segment segment = make_sealed();
	struct ipcc_error err = {0};
	struct device_range *range;

	cr_assert_eq(map(segment.fd, BYTES, DEVICE_READ, &range, &err), 0, "%s", err.message);
	cr_assert_eq(((const char *)range->addresses[0])[BYTES - 1], 0x5a);
	cr_assert_eq(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd, 0), MAP_FAILED);
	cr_assert_eq(errno, EPERM);
	cr_assert_lt(pwrite(segment.fd, "x", 1, 0), 0);
	cr_assert_lt(ftruncate(segment.fd, 0), 0);
	host()->unmap(range);
	host()->destroy(&segment);
}

Test(loader_host, a_write_through_the_mapping_kills_the_writer_alone)
{
	struct device_segment segment = make_sealed();
	struct ipcc_error err = {0};
	struct device_range *range;
	int status;

	cr_assert_eq(map(segment.fd, BYTES, DEVICE_READ, &range, &err), 0, "%s", err.message);
	pid_t child = fork();
	if (child == 0) {
		signal(SIGSEGV, SIG_DFL);
		*(volatile char *)range->addresses[0] = 1;
		_exit(0);
	}
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "status %#x", (unsigned)status);
	cr_assert_eq(*(const char *)range->addresses[0], 0x5a);
	host()->unmap(range);
	host()->destroy(&segment);
}

Test(loader_host, a_private_copy_is_written_without_changing_the_segment)
{
	struct device_segment segment = make_sealed();
	struct ipcc_error err = {0};
	struct device_range *shared, *copy;

	cr_assert_eq(map(segment.fd, BYTES, DEVICE_READ, &shared, &err), 0, "%s", err.message);
	cr_assert_eq(map(segment.fd, BYTES, DEVICE_PRIVATE, &copy, &err), 0, "%s", err.message);
	*(char *)copy->addresses[0] = 1;
	cr_assert_eq(*(const char *)shared->addresses[0], 0x5a);
	host()->unmap(shared);
	host()->unmap(copy);
	host()->destroy(&segment);
}

Test(loader_host, only_sealed_segments_of_the_right_size_are_mapped)
{
	struct device_segment open_segment = make(), sealed = make_sealed();
	struct ipcc_error err = {0};
	struct device_range *range = NULL;
	int pipe_fds[2];

	cr_assert_eq(map(open_segment.fd, BYTES, DEVICE_READ, &range, &err), IPCC_INVALID);
	expect_error(map(sealed.fd, BYTES + 1, DEVICE_READ, &range, &err), &err, IPCC_INVALID,
		     "has 3145728 bytes, its manifest says 3145729");
	cr_assert_eq(map(sealed.fd, BYTES - 4096, DEVICE_PRIVATE, &range, &err), IPCC_INVALID);
	expect_error(map(sealed.fd, 0, DEVICE_READ, &range, &err), &err, IPCC_USAGE, "0 bytes");
	cr_assert_eq(pipe(pipe_fds), 0);
	cr_assert_eq(map(pipe_fds[0], BYTES, DEVICE_READ, &range, &err), IPCC_INVALID);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	cr_assert_null(range);
	host()->destroy(&open_segment);
	host()->destroy(&sealed);
}

Test(loader_host, a_segment_mapped_elsewhere_cannot_be_sealed)
{
	struct device_segment segment = make();
	struct ipcc_error err = {0};

	void *other = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd, 0);
	cr_assert_neq(other, MAP_FAILED);
	expect_error(host()->seal(&segment, &err), &err, IPCC_FAILED, "still mapped or pinned");
	cr_assert_eq(err.sys_errno, EBUSY);
	munmap(other, BYTES);
	cr_assert_eq(host()->seal(&segment, &err), 0, "%s", err.message);
	host()->destroy(&segment);
}

Test(loader_host, sizes_that_cannot_be_are_refused)
{
	struct device_segment segment = {.fd = -1};
	struct ipcc_error err = {0};

	/* Should the check ever fail, the kernel kills this process, not its neighbours. */
	int adjust = open("/proc/self/oom_score_adj", O_WRONLY);
	cr_assert_eq(write(adjust, "1000", 4), 4);
	close(adjust);
	expect_error(host()->create(DEVICE_HOST, "x", 0, &segment, &err), &err, IPCC_USAGE, "0 bytes");
	expect_error(host()->create(DEVICE_HOST, "x", UINT64_MAX, &segment, &err), &err, IPCC_USAGE, "cannot have");
	expect_error(host()->create(DEVICE_HOST, "x", (uint64_t)1 << 60, &segment, &err), &err, IPCC_NO_MEMORY,
		     "are needed");
	cr_assert_eq(segment.fd, -1);
	expect_error(host()->memory_check(DEVICE_HOST, (uint64_t)1 << 50, &err), &err, IPCC_NO_MEMORY, "are needed");
}

Test(loader_host, a_device_that_is_not_served_is_named)
{
	struct ipcc_error err = {0};

	cr_assert_null(device_find("TPU-1234", &err));
	expect_error(err.code, &err, IPCC_NOT_FOUND, "device 'TPU-1234' is not served");
}
