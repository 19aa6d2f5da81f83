/* See shards.h. */
#include "loader/shards.h"

#include "loader/reader.h"
#include "loader/shown.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef STATX_DIOALIGN
#define STATX_DIOALIGN 0x00002000U /* Linux 6.1 */
#endif

/* What is assumed where the kernel does not tell: more than any block device asks for. */
#define DEFAULT_ALIGNMENT 4096

int shards_init(struct shards *files, const struct checkpoint *cp, const struct units *units)
{
	uint64_t blocks = 0;

	*files = (struct shards){.cp = cp, .units = units};
	pthread_mutex_init(&files->lock, NULL);
	for (uint32_t i = 0; i < cp->file_count; i++)
		blocks += units->file_whole[i] ? units->file_units[i] : 0;
	files->files = calloc((size_t)cp->file_count + 1, sizeof(*files->files));
	files->blocks = calloc(blocks + 1, sizeof(*files->blocks));
	if (files->files == NULL || files->blocks == NULL) {
		shards_fini(files);
		*files = (struct shards){0};
		return -ENOMEM;
	}
	blocks = 0;
	for (uint32_t i = 0; i < cp->file_count; i++) {
		files->files[i] = (struct open_file){
			.fd = -1, .direct_fd = -1, .left = units->file_units[i], .blocks = &files->blocks[blocks]};
		blocks += units->file_whole[i] ? units->file_units[i] : 0;
	}
	return 0;
}

void shards_fini(struct shards *files)
{
	for (uint32_t i = 0; files->files != NULL && i < files->cp->file_count; i++) {
		fd_close(&files->files[i].fd);
		fd_close(&files->files[i].direct_fd);
	}
	free(files->files);
	free(files->blocks);
	pthread_mutex_destroy(&files->lock);
}

int shards_use(struct shards *files, uint32_t i, struct open_file **file, struct ipcc_error *err)
{
	struct open_file *f = &files->files[i];
	struct statfs fs;
	int r = 0;

	pthread_mutex_lock(&files->lock);
	if (!f->opened) {
		r = checkpoint_open_file(files->cp, i, &f->fd, err);
		f->opened = r == 0;
		f->in_memory = r == 0 && fstatfs(f->fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
	}
	pthread_mutex_unlock(&files->lock);
	if (r == 0)
		*file = f;
	return r;
}

/* Offset alignment of O_DIRECT on that file; 0 when it is not to be had. */
static uint64_t direct_alignment(int fd)
{
	struct statx st;

	if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) != 0 || !(st.stx_mask & STATX_DIOALIGN))
		return DEFAULT_ALIGNMENT;
	/* The buffers begin at pages. */
	if (st.stx_dio_mem_align > (uint64_t)sysconf(_SC_PAGESIZE) || st.stx_dio_offset_align > READER_MAX_ALIGNMENT)
		return 0;
	return st.stx_dio_offset_align;
}

uint64_t shards_use_direct(struct shards *files, struct open_file *file)
{
	char path[64];

	pthread_mutex_lock(&files->lock);
	if (!file->direct_tried) {
		file->direct_tried = true;
		file->alignment = direct_alignment(file->fd);
		/* Through /proc it is the same file, whatever its name leads to by now. */
		snprintf(path, sizeof(path), "/proc/self/fd/%d", file->fd);
		if (file->alignment != 0)
			file->direct_fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	}
	uint64_t alignment = file->direct_fd >= 0 ? file->alignment : 0;
	pthread_mutex_unlock(&files->lock);
	return alignment;
}

void shards_refuse_direct(struct shards *files, struct open_file *file)
{
	pthread_mutex_lock(&files->lock);
	/* Other reads may be under way: it is closed with the file. */
	file->alignment = 0;
	pthread_mutex_unlock(&files->lock);
}

/* Is it still the file that was opened? */
static int compare(const struct shards *files, uint32_t i, struct ipcc_error *err)
{
	const struct safetensors *header = &files->cp->files[i].header;
	struct source now;

	int r = source_stat(files->files[i].fd, &now);
	if (r < 0)
		return fail_errno(err, -r, "%s: cannot be examined", shown(header->path));
	const char *difference = source_difference(&header->source, &now);
	if (difference != NULL)
		return fail(err, IPCC_INVALID, "%s: changed while being read: its %s is not what it was",
			    shown(header->path), difference);
	return 0;
}

int shards_done(struct shards *files, uint32_t i, struct hash128 *hash, struct ipcc_error *err)
{
	struct open_file *file = &files->files[i];

	pthread_mutex_lock(&files->lock);
	bool last = --file->left == 0;
	pthread_mutex_unlock(&files->lock);
	if (!last)
		return 0;
	int r = compare(files, i, err);
	fd_close(&file->fd);
	fd_close(&file->direct_fd);
	if (r == 0 && files->units->file_whole[i])
		*hash = hash_bytes(file->blocks, files->units->file_units[i] * sizeof(*file->blocks));
	return r;
}
