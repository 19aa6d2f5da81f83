/*
 * Are the caller's own files those that the model was made of? Only the client can tell: the broker may not see them.
 *
 * Per file: *same* (device, inode, size, mtime, ctime equal, and the last change was not so close to the load's stat that a later
 * write could have left them as they were); *different* (size, or content where it is compared); else *unknown*, as
 * through overlays, copies, chmod and hard links: then the content decides, if the caller allows the time for it.
 */
#include "broker/client/client.h"

#include "manifest/fail.h"
#include "manifest/fd.h"
#include "manifest/path.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t nanoseconds(struct timespec t)
{
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* One comparison: the caller's file, the manifest's source, and how far to go. */
struct comparison {
	const struct ipcc_source *source;
	char path[PATH_MAX + 8]; /* the caller's file */
	int fd;
	struct stat st;
	const atomic_bool *cancel;
};

/* O_NONBLOCK: a FIFO in the place of a file must not hang us. */
static int open_file(struct comparison *c, struct ipcc_error *err)
{
	cleanup_fd int fd = open(c->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 && errno == ENOENT)
		return fail_mismatch(
			err, c->source->name, "missing", "present",
			"%s is missing, but the resident model was made of it; load it again with --replace", c->path);
	if (fd < 0 || fstat(fd, &c->st) != 0)
		return fail_errno(err, errno, "cannot open %s to compare it with the resident model", c->path);
	if (!S_ISREG(c->st.st_mode))
		return fail(err, IPCC_INVALID, "%s is no regular file", c->path);
	c->fd = fd_take(&fd);
	return IPCC_OK;
}

static bool same_file(const struct ipcc_source *s, const struct stat *st)
{
	uint64_t mtime = nanoseconds(st->st_mtim), ctime = nanoseconds(st->st_ctim);
	return s->device == st->st_dev && s->inode == st->st_ino && s->bytes == (uint64_t)st->st_size &&
	       s->mtime_ns == mtime && s->ctime_ns == ctime && s->stat_ns >= manifest_settled_ns(mtime, ctime);
}

static int compare_content(const struct comparison *c, struct ipcc_error *err)
{
	const struct ipcc_source *s = c->source;
	struct hash128 want, have;
	char want_text[HASH_TEXT_BYTES], have_text[HASH_TEXT_BYTES];
	if (!s->hashed)
		return fail(err, IPCC_UNKNOWN,
			    "%s: the publisher recorded no content hash to compare with; load the model again",
			    c->path);
	int rc = hash_file(c->fd, s->bytes, 0, c->cancel, &have);
	if (rc == -ECANCELED)
		return fail(err, IPCC_CANCELED, "canceled");
	if (rc == -ENODATA)
		return fail(err, IPCC_INVALID, "%s changed while it was being compared; try again", c->path);
	if (rc < 0)
		return fail_errno(err, -rc, "cannot read %s to compare it with the resident model", c->path);
	memcpy(want.bytes, s->hash, sizeof(want.bytes));
	if (memcmp(want.bytes, have.bytes, sizeof(want.bytes)) == 0)
		return IPCC_OK;
	hash_text(&want, want_text);
	hash_text(&have, have_text);
	/* "expected" is what the caller has, "got" what is resident. */
	return fail_mismatch(
		err, s->name, have_text, want_text,
		"%s has other content than the resident model (hash %s, resident %s); load it again with --replace",
		c->path, have_text, want_text);
}

static int compare_open_file(const struct comparison *c, enum ipcc_verify verify, enum ipcc_source_state *state,
			     struct ipcc_error *err)
{
	const struct ipcc_source *s = c->source;
	if ((uint64_t)c->st.st_size != s->bytes) {
		char want[32], have[32];
		snprintf(want, sizeof(want), "%" PRIu64 " bytes", s->bytes);
		snprintf(have, sizeof(have), "%jd bytes", (intmax_t)c->st.st_size);
		return fail_mismatch(err, s->name, have, want,
				     "%s has %s, the resident model was made of %s; load it again with --replace",
				     c->path, have, want);
	}
	if (same_file(s, &c->st))
		return IPCC_OK;
	if (verify != IPCC_VERIFY_HASH)
		return fail(err, IPCC_UNKNOWN,
			    "%s cannot be told by its metadata to be the file that the resident model was made of "
			    "(copied, touched, "
			    "another mount, or written just before the load); compare the content with --verify hash, "
			    "or trust the "
			    "publisher with --verify none",
			    c->path);
	*state = IPCC_SOURCES_VERIFIED;
	return compare_content(c, err);
}

static int compare_one(struct comparison *c, enum ipcc_verify verify, enum ipcc_source_state *state,
		       struct ipcc_error *err)
{
	c->fd = -1;
	int rc = open_file(c, err);
	if (rc == IPCC_OK)
		rc = compare_open_file(c, verify, state, err);
	fd_close(&c->fd);
	return rc;
}

/* A model of the layout "checkpoint" was made of what its folder said then. An index that came later makes it another. */
static int check_index(const struct manifest *m, const char *root, struct ipcc_error *err)
{
	static const char index[] = "model.safetensors.index.json";
	char path[PATH_MAX + 32];
	bool checkpoint = false, known = false;
	struct ipcc_field field;
	struct ipcc_source source;
	for (uint32_t i = 0; manifest_field(m, i, &field, NULL) == IPCC_OK; i++)
		checkpoint =
			checkpoint || (strcmp(field.name, "layout") == 0 && strcmp(field.value, "checkpoint") == 0);
	for (uint32_t i = 0; manifest_source(m, i, &source, NULL) == IPCC_OK; i++)
		known = known || strcmp(source.name, index) == 0;
	snprintf(path, sizeof(path), "%s/%s", root, index);
	if (!checkpoint || known || access(path, F_OK) != 0)
		return IPCC_OK;
	return fail_mismatch(err, index, "present", "missing",
			     "%s exists, but the resident model was made without it; load it again with --replace",
			     path);
}

int sources_compare(const struct manifest *m, const char *root, enum ipcc_verify verify, const atomic_bool *cancel,
		    enum ipcc_source_state *state, struct ipcc_error *err)
{
	enum ipcc_source_state found = IPCC_SOURCES_SAME;
	uint32_t count = manifest_count(m, SECTION_SOURCES);
	struct stat st;
	int rc = IPCC_OK;
	if (count == 0)
		return fail(err, IPCC_UNKNOWN,
			    "the publisher recorded no source files; attach with --verify none to trust it");
	if (stat(root, &st) != 0)
		return fail_errno(err, errno, "cannot open %s to compare it with the resident model", root);
	/* A file is compared itself, whatever it is called: it may be a link into a store of hashes. */
	bool folder = S_ISDIR(st.st_mode);
	if (!folder && count != 1)
		return fail_mismatch(err, "sources", "1 file", "several files",
				     "%s is a file, but the resident model was made of %u; name its folder", root,
				     count);
	if (folder)
		rc = check_index(m, root, err);
	for (uint32_t i = 0; rc == IPCC_OK && i < count; i++) {
		struct ipcc_source source;
		struct comparison c = {.source = &source, .cancel = cancel};
		rc = manifest_source(m, i, &source, err);
		/* Names come from a publisher: one that leads out of the folder would let it probe files of the caller. */
		if (rc == IPCC_OK && !path_stays_inside(source.name))
			rc = fail(err, IPCC_INVALID, "the manifest's source %u is not a file inside the model's folder",
				  i);
		if (rc != IPCC_OK)
			break;
		int length = folder ? snprintf(c.path, sizeof(c.path), "%s/%s", root, source.name)
				    : snprintf(c.path, sizeof(c.path), "%s", root);
		if ((size_t)length >= sizeof(c.path))
			return fail(err, IPCC_INVALID, "the path of source %u is longer than %zu bytes", i,
				    sizeof(c.path) - 1);
		rc = compare_one(&c, verify, &found, err);
	}
	if (rc == IPCC_OK)
		*state = found;
	return rc;
}
