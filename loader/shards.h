/*
 * The files of a checkpoint while they are read: opened with the first unit that needs them, compared with what was parsed
 * then and after the last unit, and closed with it, so that a model of a thousand shards needs a few fds.
 *
 * Thread-safe: `lock` guards opening and closing; an fd stays open from shards_use to the shards_done of the same unit.
 */
#ifndef IPCC_LOADER_SHARDS_H
#define IPCC_LOADER_SHARDS_H

#include "loader/checkpoint.h"
#include "loader/units.h"
#include "manifest/hash.h"

#include <pthread.h>
#include <stdbool.h>

struct open_file {
	int fd;
	int direct_fd;	    /* the same file with O_DIRECT, or -1: refused, or not tried yet */
	uint64_t alignment; /* what O_DIRECT asks of offsets and lengths */
	bool direct_tried;
	bool in_memory; /* of a file system that has no other place for it */
	bool opened;
	uint64_t left;		/* units not done */
	struct hash128 *blocks; /* of a file that is read whole: room for all its block hashes */
};

struct shards {
	const struct checkpoint *cp;
	const struct units *units;
	pthread_mutex_t lock;
	struct open_file *files;
	struct hash128 *blocks; /* of all files */
};

/* 0 or -ENOMEM. Release with shards_fini, which closes what is open. */
int shards_init(struct shards *files, const struct checkpoint *cp, const struct units *units);
void shards_fini(struct shards *files);

/* The file `i`, open. IPCC_INVALID: it is not what was parsed; others as checkpoint_open_file. */
int shards_use(struct shards *files, uint32_t i, struct open_file **file, struct ipcc_error *err);
/* Opens it for O_DIRECT too. The alignment that offsets and lengths need; 0 where the file system refuses, or asks for too
 * large a one. */
uint64_t shards_use_direct(struct shards *files, struct open_file *file);
/* O_DIRECT was refused when reading. */
void shards_refuse_direct(struct shards *files, struct open_file *file);

/* A unit of the file is done. After the last one it is compared once more (IPCC_INVALID: changed while being read), closed,
 * and *hash gets its content hash, if it was read whole. */
int shards_done(struct shards *files, uint32_t i, struct hash128 *hash, struct ipcc_error *err);

#endif
