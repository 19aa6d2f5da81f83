/*
 * A FUSE file system that shows a folder and lets its reads fail:
 *
 *	faultfs FOLDER MOUNTPOINT FAULT [NAME:OFFSET]
 *
 *	none       passes everything through
 *	eio        a read that reaches OFFSET of the file NAME fails with EIO
 *	short      no read gives more than 5000 bytes at a time
 *	nodirect   an open with O_DIRECT fails with EINVAL
 *	truncate   once OFFSET was reached, the file ends there
 *	touch      once OFFSET was reached, the file has another modification time
 *	slow       every read takes 50 ms
 *	replace    once OFFSET was reached, the file is another one of the same size
 *
 * Runs in the foreground until it is unmounted. Pages are not kept between opens, so that each load reads anew.
 */
#define FUSE_USE_VERSION 31
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	FAULT_NONE,
	FAULT_EIO,
	FAULT_SHORT,
	FAULT_NODIRECT,
	FAULT_TRUNCATE,
	FAULT_TOUCH,
	FAULT_REPLACE,
	FAULT_SLOW,
	FAULT_COUNT
};

static int folder;
static int fault;
static char name[256];
static off_t fault_offset = -1;
static atomic_bool reached;

static bool is_faulty(const char *path)
{
	return strcmp(path + 1, name) == 0;
}

static const char *place(const char *path)
{
	return path[1] == '\0' ? "." : path + 1;
}

static int get_attributes(const char *path, struct stat *st, struct fuse_file_info *info)
{
	(void)info;
	if (fstatat(folder, place(path), st, 0) < 0)
		return -errno;
	if (!is_faulty(path) || !atomic_load(&reached))
		return 0;
	if (fault == FAULT_TRUNCATE)
		st->st_size = fault_offset;
	if (fault == FAULT_TOUCH)
		st->st_mtim.tv_sec++;
	if (fault == FAULT_REPLACE)
		st->st_ino++;
	return 0;
}

static int list(const char *path, void *buffer, fuse_fill_dir_t add, off_t offset, struct fuse_file_info *info,
		enum fuse_readdir_flags flags)
{
	(void)path, (void)offset, (void)info, (void)flags;
	add(buffer, ".", NULL, 0, 0);
	return 0;
}

static int open_file(const char *path, struct fuse_file_info *info)
{
	if (fault == FAULT_NODIRECT && (info->flags & O_DIRECT))
		return -EINVAL;
	int fd = openat(folder, place(path), O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	info->fh = (uint64_t)fd;
	return 0;
}

static int read_file(const char *path, char *to, size_t bytes, off_t offset, struct fuse_file_info *info)
{
	bool reaches = is_faulty(path) && fault_offset >= 0 && offset + (off_t)bytes > fault_offset;

	if (reaches)
		atomic_store(&reached, true);
	if (reaches && fault == FAULT_EIO)
		return -EIO;
	if (reaches && fault == FAULT_TRUNCATE)
		bytes = offset < fault_offset ? (size_t)(fault_offset - offset) : 0;
	if (fault == FAULT_SHORT && bytes > 5000)
		bytes = 5000;
	if (fault == FAULT_SLOW)
		usleep(50000);
	ssize_t got = pread((int)info->fh, to, bytes, offset);
	return got < 0 ? -errno : (int)got;
}

static int release(const char *path, struct fuse_file_info *info)
{
	(void)path;
	close((int)info->fh);
	return 0;
}

static void *configure(struct fuse_conn_info *connection, struct fuse_config *config)
{
	(void)connection;
	config->use_ino = 1;
	config->attr_timeout = 0;
	config->entry_timeout = 0;
	/* Short reads reach the reader only past the page cache. */
	config->direct_io = fault == FAULT_SHORT;
	return NULL;
}

static const struct fuse_operations operations = {
	.init = configure,
	.getattr = get_attributes,
	.readdir = list,
	.open = open_file,
	.read = read_file,
	.release = release,
};

int main(int argc, char **argv)
{
	static const char *const faults[] = {"none",	 "eio",	  "short",   "nodirect",
					     "truncate", "touch", "replace", "slow"};
	char *arguments[] = {argv[0], argv[2], "-f", "-o", "ro,allow_other", NULL};

	if (argc < 4 || (argc > 4 && sscanf(argv[4], "%255[^:]:%ld", name, &fault_offset) != 2)) {
		fputs("faultfs FOLDER MOUNTPOINT FAULT [NAME:OFFSET]\n", stderr);
		return 2;
	}
	while (fault < FAULT_COUNT && strcmp(argv[3], faults[fault]) != 0)
		fault++;
	folder = open(argv[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fault == FAULT_COUNT || folder < 0) {
		perror(argv[1]);
		return 2;
	}
	return fuse_main(5, arguments, &operations, NULL);
}
