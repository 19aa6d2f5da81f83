/*
 * Are the caller's own files those that the model was made of? Only the client can tell: the broker may not see them.
 *
 * Per file: *same* (device, inode, size, mtime, ctime equal, and the mtime was not within MANIFEST_RACY_NS of the load's stat, when
 * a later write could have left it as it was); *different* (size, or content where it is compared); else *unknown*, as
 * through overlays, copies, chmod and hard links: then the content decides, if the caller allows the time for it.
 */
#include "broker/client/client.h"

#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

static uint64_t nanoseconds(struct timespec t)
{
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* O_NONBLOCK: a FIFO in the place of a file must not hang us. */
static int open_source(int root_fd, const char *root, const char *name, struct stat *st, int *fd, struct ipcc_error *err)
{
	cleanup_fd int opened = openat(root_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (opened < 0 && errno == ENOENT)
		return fail_mismatch(err, name, "present", "missing", "%s/%s is missing, but the resident model was made of it", root,
				     name);
	if (opened < 0 || fstat(opened, st) != 0)
		return fail_errno(err, errno, "cannot open %s/%s to compare it with the resident model", root, name);
	if (!S_ISREG(st->st_mode))
		return fail(err, IPCC_INVALID, "%s/%s is no regular file", root, name);
	*fd = fd_take(&opened);
	return IPCC_OK;
}

static bool same_file(const struct ipcc_source *s, const struct stat *st)
{
	uint64_t mtime = nanoseconds(st->st_mtim);
	return s->device == st->st_dev && s->inode == st->st_ino && s->bytes == (uint64_t)st->st_size &&
	       s->mtime_ns == mtime && s->ctime_ns == nanoseconds(st->st_ctim) && s->stat_ns >= mtime + MANIFEST_RACY_NS;
}

static int compare_content(const struct ipcc_source *s, const char *root, int fd, struct ipcc_error *err)
{
	struct hash128 want, have;
	char want_text[HASH_TEXT_BYTES], have_text[HASH_TEXT_BYTES];
	if (!s->hashed)
		return fail(err, IPCC_UNKNOWN, "%s/%s: the publisher recorded no content hash to compare with; load the model again",
			    root, s->name);
	int rc = hash_file(fd, s->bytes, 0, &have);
	if (rc == -ENODATA)
		return fail(err, IPCC_INVALID, "%s/%s changed while it was being compared; try again", root, s->name);
	if (rc < 0)
		return fail_errno(err, -rc, "cannot read %s/%s to compare it with the resident model", root, s->name);
	memcpy(want.bytes, s->hash, sizeof(want.bytes));
	if (memcmp(want.bytes, have.bytes, sizeof(want.bytes)) == 0)
		return IPCC_OK;
	hash_text(&want, want_text);
	hash_text(&have, have_text);
	/* "expected" is what the caller has, "got" what is resident. */
	return fail_mismatch(err, s->name, have_text, want_text,
			     "%s/%s has other content than the resident model (hash %s, resident %s); load it again with --replace",
			     root, s->name, have_text, want_text);
}

static int compare_one(const struct ipcc_source *s, int root_fd, const char *root, enum ipcc_verify verify,
		       enum ipcc_source_state *state, struct ipcc_error *err)
{
	struct stat st;
	cleanup_fd int fd = -1;
	int rc = open_source(root_fd, root, s->name, &st, &fd, err);
	if (rc != IPCC_OK)
		return rc;
	if ((uint64_t)st.st_size != s->bytes) {
		char want[32], have[32];
		snprintf(want, sizeof(want), "%" PRIu64 " bytes", s->bytes);
		snprintf(have, sizeof(have), "%jd bytes", (intmax_t)st.st_size);
		return fail_mismatch(err, s->name, have, want,
				     "%s/%s has %s, the resident model was made of %s; load it again with --replace", root,
				     s->name, have, want);
	}
	if (same_file(s, &st))
		return IPCC_OK;
	if (verify != IPCC_VERIFY_HASH)
		return fail(err, IPCC_UNKNOWN,
			    "%s/%s cannot be told by its metadata to be the file that the resident model was made of (copied, touched, another mount, or written just before the load); compare the content with --verify hash, or trust the publisher with --verify none",
			    root, s->name);
	*state = IPCC_SOURCES_VERIFIED;
	return compare_content(s, root, fd, err);
}

/* A single file is its folder's entry of that name. */
static int open_root(const char *root, const struct manifest *m, int *fd, struct ipcc_error *err)
{
	struct stat st;
	cleanup_fd int opened = open(root, O_PATH | O_CLOEXEC);
	if (opened < 0 || fstat(opened, &st) != 0)
		return fail_errno(err, errno, "cannot open %s to compare it with the resident model", root);
	if (!S_ISDIR(st.st_mode)) {
		if (manifest_count(m, SECTION_SOURCES) != 1)
			return fail_mismatch(err, "sources", "1 file", "several files",
					     "%s is a file, but the resident model was made of %u; name its folder", root,
					     manifest_count(m, SECTION_SOURCES));
		fd_close(&opened);
		char parent[PATH_MAX];
		snprintf(parent, sizeof(parent), "%s", root);
		char *slash = strrchr(parent, '/');
		if (slash == NULL)
			strcpy(parent, ".");
		else
			slash[slash == parent] = '\0';
		opened = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (opened < 0)
			return fail_errno(err, errno, "cannot open %s", parent);
	}
	*fd = fd_take(&opened);
	return IPCC_OK;
}

int sources_compare(const struct manifest *m, const char *root, enum ipcc_verify verify, enum ipcc_source_state *state,
		    struct ipcc_error *err)
{
	cleanup_fd int root_fd = -1;
	enum ipcc_source_state found = IPCC_SOURCES_SAME;
	uint32_t count = manifest_count(m, SECTION_SOURCES);
	if (count == 0)
		return fail(err, IPCC_UNKNOWN, "the publisher recorded no source files; attach with --verify none to trust it");
	int rc = open_root(root, m, &root_fd, err);
	for (uint32_t i = 0; rc == IPCC_OK && i < count; i++) {
		struct ipcc_source source;
		rc = manifest_source(m, i, &source, err);
		if (rc == IPCC_OK)
			rc = compare_one(&source, root_fd, root, verify, &found, err);
	}
	if (rc == IPCC_OK)
		*state = found;
	return rc;
}
