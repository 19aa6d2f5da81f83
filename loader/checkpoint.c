/* See checkpoint.h. */
#include "loader/checkpoint.h"

#include "loader/foreign.h"
#include "loader/index.h"
#include "loader/shown.h"
#include "manifest/bytes.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void checkpoint_fini(struct checkpoint *cp)
{
	for (uint32_t i = 0; i < cp->file_count; i++) {
		free(cp->files[i].name);
		safetensors_fini(&cp->files[i].header);
	}
	free(cp->files);
	free(cp->root);
	if (cp->folder)
		fd_close(&cp->dirfd);
	*cp = (struct checkpoint){.dirfd = AT_FDCWD};
}

/* What to open for a file of that name, relative to cp->dirfd. */
static const char *file_place(const struct checkpoint *cp, const char *name)
{
	return cp->folder ? name : cp->root;
}

/* "root/name", malloc'ed, or NULL. */
static char *path_below(const struct checkpoint *cp, const char *name)
{
	char *path;
	return asprintf(&path, "%s/%s", cp->root, name) < 0 ? NULL : path;
}

static int no_memory(const struct checkpoint *cp, struct ipcc_error *err)
{
	return fail(err, IPCC_NO_MEMORY, "%s: no memory", shown(cp->root));
}

/* Parses the file `name` as the next of cp->files, which has room for it. `path` is for messages. */
static int add_file(struct checkpoint *cp, const char *name, const char *path, struct ipcc_error *err)
{
	struct checkpoint_file *file = &cp->files[cp->file_count];

	int r = safetensors_read(&file->header, cp->dirfd, file_place(cp, name), path, err);
	if (r != 0)
		return r;
	file->name = strdup(name);
	file->first_tensor = cp->tensor_count;
	cp->file_count++;
	if (file->name == NULL)
		return no_memory(cp, err);
	if (file->header.tensor_count > SAFETENSORS_MAX_TENSORS - cp->tensor_count)
		return fail(err, IPCC_REFUSED, "%s: more than %d tensors", shown(cp->root), SAFETENSORS_MAX_TENSORS);
	cp->tensor_count += file->header.tensor_count;
	/* The tensors cover each file's data exactly. */
	cp->tensor_bytes += file->header.source.bytes - file->header.data_begin;
	if (add_overflows(cp->file_bytes, file->header.source.bytes, &cp->file_bytes))
		return fail(err, IPCC_INVALID, "%s: the sizes of its files overflow", shown(cp->root));
	return 0;
}

static int add_shard(struct checkpoint *cp, const struct index *index, uint32_t shard, struct ipcc_error *err)
{
	cleanup_free char *path = path_below(cp, index->shards[shard]);
	struct ipcc_error reason = {0};

	if (path == NULL)
		return no_memory(cp, err);
	int r = add_file(cp, index->shards[shard], path, &reason);
	if (r == IPCC_NOT_FOUND)
		return fail(err, IPCC_INVALID, "%s; the index assigns tensor '%s' to this shard", reason.message,
			    shown(index_tensor_of(index, shard)));
	if (r != 0 && err != NULL)
		*err = reason;
	return r;
}

static int open_indexed(struct checkpoint *cp, struct ipcc_error *err)
{
	cleanup_free char *path = path_below(cp, CHECKPOINT_INDEX);
	struct index index = {0};

	if (path == NULL)
		return no_memory(cp, err);
	int r = index_read(&index, cp->dirfd, CHECKPOINT_INDEX, path, err);
	if (r != 0)
		return r;
	cp->indexed = true;
	cp->index = index.source;
	cp->files = calloc(index.shard_count, sizeof(*cp->files));
	if (cp->files == NULL)
		r = no_memory(cp, err);
	for (uint32_t i = 0; r == 0 && i < index.shard_count; i++)
		r = add_shard(cp, &index, i, err);
	if (r == 0)
		r = index_check(&index, cp->files, err);
	index_fini(&index);
	return r;
}

static int open_only(struct checkpoint *cp, const char *name, struct ipcc_error *err)
{
	cleanup_free char *path = path_below(cp, name);

	cp->files = calloc(1, sizeof(*cp->files));
	if (cp->files == NULL || path == NULL)
		return no_memory(cp, err);
	return add_file(cp, name, path, err);
}

static bool ends_with(const char *text, const char *suffix)
{
	size_t length = strlen(text), suffix_length = strlen(suffix);
	return length >= suffix_length && strcmp(text + length - suffix_length, suffix) == 0;
}

/* What a folder holds, hidden files aside. */
struct listing {
	unsigned safetensors;	  /* how many */
	char first[NAME_MAX + 1]; /* one of them; the first by name */
	char other[NAME_MAX + 1]; /* a file of another format, "" for none; the first by name */
};

static void note_first(char *first, const char *name)
{
	if (first[0] == '\0' || strcmp(name, first) < 0)
		snprintf(first, NAME_MAX + 1, "%s", name);
}

static int list_folder(const struct checkpoint *cp, struct listing *listing, struct ipcc_error *err)
{
	/* cp->dirfd is O_PATH and cannot be listed. */
	int fd = openat(cp->dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;

	if (folder == NULL) {
		int error = errno;
		fd_close(&fd);
		return fail_errno(err, error, "%s: cannot be listed", shown(cp->root));
	}
	errno = 0;
	for (struct dirent *entry; (entry = readdir(folder)) != NULL; errno = 0) {
		if (entry->d_name[0] == '.')
			continue;
		if (ends_with(entry->d_name, ".safetensors")) {
			listing->safetensors++;
			note_first(listing->first, entry->d_name);
		} else if (foreign_by_name(entry->d_name) != NULL) {
			note_first(listing->other, entry->d_name);
		}
	}
	int error = errno;
	closedir(folder);
	return error == 0 ? 0 : fail_errno(err, error, "%s: cannot be listed", shown(cp->root));
}

/* A folder with neither index nor model.safetensors. */
static int open_unnamed(struct checkpoint *cp, struct ipcc_error *err)
{
	struct listing listing = {0};

	int r = list_folder(cp, &listing, err);
	if (r != 0)
		return r;
	if (listing.safetensors == 1)
		return open_only(cp, listing.first, err);
	if (listing.safetensors > 1)
		return fail(err, IPCC_REFUSED,
			    "%s: %u safetensors files (%s, ...) and no " CHECKPOINT_INDEX
			    " to say how they belong together; add the index, or name one of the files",
			    shown(cp->root), listing.safetensors, shown(listing.first));
	if (listing.other[0] != '\0') {
		cleanup_free char *path = path_below(cp, listing.other);
		return path == NULL ? no_memory(cp, err) : foreign_refuse(foreign_by_name(path), path, err);
	}
	return fail(err, IPCC_NOT_FOUND,
		    "%s: no model in this folder: neither " CHECKPOINT_INDEX " nor any *.safetensors", shown(cp->root));
}

static bool holds(const struct checkpoint *cp, const char *name)
{
	struct stat st;
	/* A link to nowhere is held too: opening it says what is wrong. */
	return fstatat(cp->dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static int open_folder(struct checkpoint *cp, struct ipcc_error *err)
{
	int fd = open(cp->root, O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return fail_errno(err, errno, "%s: cannot be opened", shown(cp->root));
	cp->folder = true;
	cp->dirfd = fd;
	if (holds(cp, CHECKPOINT_INDEX))
		return open_indexed(cp, err);
	if (holds(cp, CHECKPOINT_SINGLE))
		return open_only(cp, CHECKPOINT_SINGLE, err);
	return open_unnamed(cp, err);
}

/* `path` is what the user gave: its last component is the file's name, whatever a link leads to. */
static int open_file(struct checkpoint *cp, const char *path, struct ipcc_error *err)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash != NULL ? slash + 1 : path;

	if (ends_with(name, ".index.json"))
		return fail(err, IPCC_USAGE, "%s: the index of a sharded model; name its folder instead", shown(path));
	const struct foreign *format = foreign_by_name(name);
	if (format != NULL)
		return foreign_refuse(format, path, err);
	cp->files = calloc(1, sizeof(*cp->files));
	return cp->files == NULL ? no_memory(cp, err) : add_file(cp, name, path, err);
}

int checkpoint_open(struct checkpoint *cp, const char *path, struct ipcc_error *err)
{
	struct checkpoint found = {.dirfd = AT_FDCWD};
	struct stat st;

	found.root = realpath(path, NULL);
	if (found.root == NULL && errno == ENOENT)
		return fail(err, IPCC_NOT_FOUND, "%s: no such file or folder", shown(path));
	if (found.root == NULL)
		return fail_errno(err, errno, "%s: cannot be opened", shown(path));
	int r = 0;
	if (stat(found.root, &st) < 0)
		r = fail_errno(err, errno, "%s: cannot be examined", shown(path));
	else
		r = S_ISDIR(st.st_mode) ? open_folder(&found, err) : open_file(&found, path, err);
	if (r != 0) {
		checkpoint_fini(&found);
		return r;
	}
	*cp = found;
	return 0;
}

static int open_again(const struct checkpoint *cp, const char *name, const char *path, const struct source *then,
		      int *fd, struct ipcc_error *err)
{
	cleanup_fd int opened = -1;
	struct source now;

	int r = source_open(cp->dirfd, name, path, &opened, &now, err);
	if (r != 0)
		return r;
	const char *difference = source_difference(then, &now);
	if (difference != NULL)
		return fail(err, IPCC_INVALID, "%s: changed while being read: its %s is not what it was", shown(path),
			    difference);
	*fd = fd_take(&opened);
	return 0;
}

int checkpoint_open_file(const struct checkpoint *cp, uint32_t i, int *fd, struct ipcc_error *err)
{
	const struct checkpoint_file *file = &cp->files[i];
	return open_again(cp, file_place(cp, file->name), file->header.path, &file->header.source, fd, err);
}

int checkpoint_open_index(const struct checkpoint *cp, int *fd, struct ipcc_error *err)
{
	cleanup_free char *path = path_below(cp, CHECKPOINT_INDEX);
	return path == NULL ? no_memory(cp, err) : open_again(cp, CHECKPOINT_INDEX, path, &cp->index, fd, err);
}

const struct safetensors_tensor *checkpoint_tensor(const struct checkpoint *cp, uint32_t number)
{
	uint32_t low = 0, high = cp->file_count;

	/* The last file that begins at or before it; files without tensors begin where the next one does. */
	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;
		if (cp->files[middle].first_tensor <= number)
			low = middle;
		else
			high = middle;
	}
	return &cp->files[low].header.tensors[number - cp->files[low].first_tensor];
}
