/* See source.h. */
#include "loader/source.h"

#include "loader/shown.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static uint64_t nanoseconds(const struct timespec *t)
{
	return (uint64_t)t->tv_sec * 1000000000 + (uint64_t)t->tv_nsec;
}

static const char *file_kind(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFDIR:
		return "a folder";
	case S_IFIFO:
		return "a FIFO";
	case S_IFSOCK:
		return "a socket";
	case S_IFCHR:
	case S_IFBLK:
		return "a device";
	default:
		return "something else";
	}
}

static int stat_identity(int fd, struct source *source, mode_t *mode)
{
	struct timespec now;
	struct stat st;

	/* Before the stat: a later write has a later mtime. */
	clock_gettime(CLOCK_REALTIME, &now);
	if (fstat(fd, &st) < 0)
		return -errno;
	*mode = st.st_mode;
	*source = (struct source){
		.device = st.st_dev,
		.inode = st.st_ino,
		.bytes = (uint64_t)st.st_size,
		.mtime_ns = nanoseconds(&st.st_mtim),
		.ctime_ns = nanoseconds(&st.st_ctim),
		.stat_ns = nanoseconds(&now),
	};
	return 0;
}

/* Why `name` could not be opened. A link to nowhere is what an unfinished download of Hugging Face looks like. */
static int open_failed(int dirfd, const char *name, const char *path, int error, struct ipcc_error *err)
{
	char target[PATH_MAX];

	if (error == ENXIO)
		return fail(err, IPCC_INVALID, "%s: a socket or a device, not a regular file", shown(path));
	if (error != ENOENT)
		return fail_errno(err, error, "%s: cannot be opened", shown(path));
	ssize_t length = readlinkat(dirfd, name, target, sizeof(target) - 1);
	if (length < 0)
		return fail(err, IPCC_NOT_FOUND, "%s: no such file", shown(path));
	target[length] = '\0';
	return fail(err, IPCC_NOT_FOUND,
		    "%s: a symbolic link to %s, which does not exist; download the model again if it is incomplete",
		    shown(path), shown(target));
}

int source_open(int dirfd, const char *name, const char *path, int *fd, struct source *source, struct ipcc_error *err)
{
	struct source found;
	mode_t mode;

	/* O_NONBLOCK: opening a FIFO must not wait for a writer. It means nothing for regular files. */
	cleanup_fd int opened = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (opened < 0)
		return open_failed(dirfd, name, path, errno, err);
	int r = stat_identity(opened, &found, &mode);
	if (r < 0)
		return fail_errno(err, -r, "%s: cannot be examined", shown(path));
	if (!S_ISREG(mode))
		return fail(err, IPCC_INVALID, "%s: %s, not a regular file", shown(path), file_kind(mode));
	*source = found;
	*fd = fd_take(&opened);
	return 0;
}

int source_stat(int fd, struct source *source)
{
	mode_t mode;
	return stat_identity(fd, source, &mode);
}

const char *source_difference(const struct source *a, const struct source *b)
{
	if (a->bytes != b->bytes)
		return "size";
	if (a->inode != b->inode)
		return "inode";
	if (a->device != b->device)
		return "device";
	if (a->mtime_ns != b->mtime_ns)
		return "modification time";
	if (a->ctime_ns != b->ctime_ns)
		return "change time";
	return NULL;
}
