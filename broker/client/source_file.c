/* What a file is as a model's source; see ipc_cache.h. It is looked at before and after it is read: a file that changes
 * meanwhile has no content that could be named. */
#include "broker/client/client.h"

#include "manifest/fail.h"
#include "manifest/fd.h"
#include "manifest/format.h"
#include "manifest/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

static uint64_t nanoseconds(struct timespec t)
{
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int identify(int fd, const char *path, struct ipcc_source *source, struct ipcc_error *err)
{
	struct timespec now;
	struct stat st;
	clock_gettime(CLOCK_REALTIME, &now); /* before the stat: a later write has a later mtime */
	if (fstat(fd, &st) != 0)
		return fail_errno(err, errno, "%s: cannot be examined", path);
	if (!S_ISREG(st.st_mode))
		return fail(err, IPCC_INVALID, "%s is no regular file", path);
	*source = (struct ipcc_source){
		.device = st.st_dev,
		.inode = st.st_ino,
		.bytes = (uint64_t)st.st_size,
		.mtime_ns = nanoseconds(st.st_mtim),
		.ctime_ns = nanoseconds(st.st_ctim),
		.stat_ns = nanoseconds(now),
	};
	return IPCC_OK;
}

static int hash_content(int fd, const char *path, struct ipcc_source *source, struct ipcc_error *err)
{
	struct hash128 content;
	struct ipcc_source after;
	int failed = hash_file(fd, source->bytes, 0, NULL, &content);
	if (failed < 0 && failed != -ENODATA)
		return fail_errno(err, -failed, "%s: cannot be read", path);
	int rc = identify(fd, path, &after, err);
	if (rc != IPCC_OK)
		return rc;
	if (failed == -ENODATA || after.bytes != source->bytes || after.mtime_ns != source->mtime_ns ||
	    after.ctime_ns != source->ctime_ns)
		return fail(err, IPCC_INVALID, "%s changed while it was read; try again", path);
	source->hashed = 1;
	memcpy(source->hash, content.bytes, sizeof(source->hash));
	return IPCC_OK;
}

EXPORT int ipcc_source_file(const char *path, bool hash, struct ipcc_source *source, uint64_t *unsettled,
			    struct ipcc_error *err)
{
	struct ipcc_source found;
	/* O_NONBLOCK: a FIFO in the place of a file must not hang us. */
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return errno == ENOENT ? fail(err, IPCC_NOT_FOUND, "%s: no such file", path)
				       : fail_errno(err, errno, "%s: cannot be opened", path);
	int rc = identify(fd, path, &found, err);
	if (rc == IPCC_OK && hash)
		rc = hash_content(fd, path, &found, err);
	if (rc != IPCC_OK)
		return rc;
	const char *slash = strrchr(path, '/');
	found.name = slash == NULL ? path : slash + 1;
	*source = found;
	*unsettled = manifest_unsettled_ns(found.mtime_ns, found.ctime_ns, found.stat_ns);
	return IPCC_OK;
}
