/*
 * Source files: opened so that nothing but a regular file is ever read, and identified by what stat says of them.
 *
 * Two stats with equal identities mean that the file was not touched in between, as far as its file system tells.
 */
#ifndef IPCC_LOADER_SOURCE_H
#define IPCC_LOADER_SOURCE_H

#include "manifest/error.h"

#include <stdbool.h>
#include <stdint.h>

struct source {
	uint64_t device;
	uint64_t inode;
	uint64_t bytes;
	uint64_t mtime_ns;
	uint64_t ctime_ns;
	uint64_t stat_ns; /* CLOCK_REALTIME just before the stat; not part of the identity */
};

/*
 * Opens `name`, relative to `dirfd` (or AT_FDCWD), for reading, and identifies it. Symbolic links are followed: model
 * folders of Hugging Face consist of them. Whatever the name leads to, the call does not block.
 *
 * `path` is the path for messages. On success *fd is the caller's. IPCC_NOT_FOUND: no such file, or a link to nowhere;
 * IPCC_INVALID: not a regular file; IPCC_FAILED: the system refused. Thread-safe.
 */
int source_open(int dirfd, const char *name, const char *path, int *fd, struct source *source, struct ipcc_error *err);

/* Identifies an open file again. 0 or a negative errno. */
int source_stat(int fd, struct source *source);

/* NULL when both are the same file in the same state, else what differs: "size", "modification time", "change time",
 * "inode" or "device". */
const char *source_difference(const struct source *a, const struct source *b);

#endif
