/*
 * Plain fd helpers, and memfds.
 *
 * memfd_check meets fds of any kind from any peer, so it asks only what answers at once for each of them: F_GETFL and
 * F_GET_SEALS are answered by the kernel's own tables, and F_GET_SEALS succeeds for nothing but memory-backed files.
 * fstat comes after it, because an fstat on a FUSE file waits for a server that the peer may control.
 */
#include "manifest/fd.h"

#include "manifest/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

void fd_close(int *fd)
{
	int saved = errno;
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	errno = saved;
}

void free_pointer(void *pointer_to_pointer)
{
	void **pointer = pointer_to_pointer;
	free(*pointer);
	*pointer = NULL;
}

int fd_read_exact(int fd, void *to, size_t bytes, uint64_t offset)
{
	char *at = to;

	while (bytes > 0) {
		ssize_t got = pread(fd, at, bytes, (off_t)offset);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (got == 0)
			return -ENODATA;
		at += got;
		bytes -= (size_t)got;
		offset += (uint64_t)got;
	}
	return 0;
}

int fd_guard_standard(void)
{
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
			return -errno;
	return 0;
}

int fd_write_exact(int fd, const void *from, size_t bytes, uint64_t offset)
{
	const char *at = from;

	while (bytes > 0) {
		ssize_t put = pwrite(fd, at, bytes, (off_t)offset);
		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return -errno;
		if (put == 0)
			return -EIO;
		at += put;
		bytes -= (size_t)put;
		offset += (uint64_t)put;
	}
	return 0;
}

/* More than the machine has? On a memfd fallocate knows no limit: it takes pages until something is killed. */
static bool exceeds_memory(uint64_t bytes)
{
	struct sysinfo info;
	return sysinfo(&info) == 0 && bytes / info.mem_unit > (uint64_t)info.totalram + info.totalswap;
}

static int open_memfd(const char *name)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL) /* an older kernel */
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	return fd < 0 ? -errno : fd;
}

int memfd_new_sparse(const char *name, uint64_t bytes)
{
	if (bytes > INT64_MAX)
		return -EFBIG;
	if (exceeds_memory(bytes))
		return -ENOMEM;
	int made = open_memfd(name);
	cleanup_fd int fd = made >= 0 ? made : -1;
	if (made < 0)
		return made;
	return ftruncate(fd, (off_t)bytes) < 0 ? -errno : fd_take(&fd);
}

#define ALLOCATE_BYTES ((uint64_t)64 << 20)

int memfd_complete(int fd, uint64_t bytes)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	/* A reader's fault in a hole of a sealed memfd would allocate a page. */
	if ((uint64_t)st.st_blocks * 512 >= bytes)
		return 0;
	/* In parts: a signal makes the kernel give back all that the call had allocated. */
	for (uint64_t done = 0; done < bytes;) {
		uint64_t part = bytes - done < ALLOCATE_BYTES ? bytes - done : ALLOCATE_BYTES;
		if (fallocate(fd, 0, (off_t)done, (off_t)part) == 0)
			done += part;
		else if (errno != EINTR)
			return -errno;
	}
	return 0;
}

int memfd_new(const char *name, uint64_t bytes)
{
	int made = memfd_new_sparse(name, bytes);
	cleanup_fd int fd = made >= 0 ? made : -1;
	if (made < 0)
		return made;
	int result = memfd_complete(fd, bytes);
	return result < 0 ? result : fd_take(&fd);
}

#define MEMFD_SEALS (F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)

int memfd_seal(int fd)
{
	return fcntl(fd, F_ADD_SEALS, MEMFD_SEALS) < 0 ? -errno : 0;
}

static int check_mode(int fd, const char *what, struct ipcc_error *err)
{
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0)
		return fail(err, IPCC_INVALID, "%s: fd %d is not open; send an open memfd", what, fd);
	if (flags & O_PATH)
		return fail(err, IPCC_INVALID,
			    "%s was opened with O_PATH, which gives no access to its bytes; send the memfd "
			    "itself",
			    what);
	if ((flags & O_ACCMODE) == O_WRONLY)
		return fail(err, IPCC_INVALID,
			    "%s is open for writing only, so nobody can read it; send an fd opened O_RDWR or "
			    "O_RDONLY",
			    what);
	return 0;
}

static int check_seals(int fd, int needed, const char *what, struct ipcc_error *err)
{
	static const struct {
		int seal;
		const char *name;
	} wanted[] = {{F_SEAL_WRITE, "WRITE"}, {F_SEAL_GROW, "GROW"}, {F_SEAL_SHRINK, "SHRINK"}, {F_SEAL_SEAL, "SEAL"}};
	char missing[64] = "";

	int seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0)
		return fail(err, IPCC_INVALID,
			    "%s is not a memfd (it has no seals: a file, pipe, socket or device); create it "
			    "with memfd_create(MFD_ALLOW_SEALING)",
			    what);
	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
		if ((seals & wanted[i].seal) != 0 || (needed & wanted[i].seal) == 0)
			continue;
		if (missing[0] != '\0')
			strcat(missing, ", ");
		strcat(missing, wanted[i].name);
	}
	if (missing[0] != '\0')
		return fail(err, IPCC_INVALID,
			    "%s lacks the seals %s, so its bytes could still change; unmap it, then seal it "
			    "(F_SEAL_WRITE, GROW, SHRINK, SEAL) before it is sent",
			    what, missing);
	return 0;
}

#define HUGE_PAGE_BYTES ((uint64_t)2 << 20)

static int check(int fd, int seals, const char *what, struct memfd_facts *facts, struct ipcc_error *err)
{
	struct stat st;

	int code = check_mode(fd, what, err);
	if (code == 0)
		code = check_seals(fd, seals, what, err);
	if (code != 0)
		return code;
	if (fstat(fd, &st) < 0)
		return fail_errno(err, errno, "%s: fstat", what);
	/* Pages behind the end, which fallocate can keep there, would count in the place of holes. Cutting the file to the
	 * size that it has frees them, and the seals permit that; what is more than a huge page's rest is refused before,
	 * since freeing takes time. */
	uint64_t allocated = (uint64_t)st.st_blocks * 512;
	if (allocated > (uint64_t)st.st_size + HUGE_PAGE_BYTES)
		return fail(err, IPCC_INVALID,
			    "%s has %" PRIu64 " bytes allocated and is only %" PRIu64
			    " bytes long; free what is behind its end",
			    what, allocated, (uint64_t)st.st_size);
	if (ftruncate(fd, st.st_size) != 0 || fstat(fd, &st) != 0)
		return fail(err, IPCC_INVALID,
			    "%s cannot be cut to its own size (%s); send it open for reading and writing", what,
			    strerror(errno));
	if ((uint64_t)st.st_blocks * 512 < (uint64_t)st.st_size)
		return fail(err, IPCC_INVALID,
			    "%s is sparse: %" PRIu64 " of its %" PRIu64 " bytes are allocated, and readers would "
			    "allocate the rest; allocate all pages (fallocate) before sealing",
			    what, (uint64_t)st.st_blocks * 512, (uint64_t)st.st_size);
	*facts = (struct memfd_facts){.bytes = (uint64_t)st.st_size, .device = st.st_dev, .inode = st.st_ino};
	return 0;
}

int memfd_check(int fd, const char *what, struct memfd_facts *facts, struct ipcc_error *err)
{
	return check(fd, MEMFD_SEALS, what, facts, err);
}

int memfd_check_sized(int fd, const char *what, struct memfd_facts *facts, struct ipcc_error *err)
{
	return check(fd, MEMFD_SEALS & ~F_SEAL_WRITE, what, facts, err);
}
