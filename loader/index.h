/*
 * The index of a sharded checkpoint, {"metadata": {...}, "weight_map": {tensor: shard}}: read, bounded, and compared with
 * what the shards really hold.
 */
#ifndef IPCC_LOADER_INDEX_H
#define IPCC_LOADER_INDEX_H

#include "loader/checkpoint.h"
#include "loader/names.h"
#include "manifest/error.h"

#include <stdbool.h>
#include <stdint.h>

struct index_tensor {
	uint32_t shard; /* where the index says that it is */
	bool found;	/* it is there */
};

/* Belongs to one thread. */
struct index {
	char *path;
	struct source source; /* the file that was read */
	uint32_t shard_count;
	const char **shards; /* sorted; the strings belong to shard_names */
	struct names shard_names;
	struct names tensor_names;
	struct index_tensor *tensors; /* by their number in tensor_names */
	uint32_t tensor_room;
};

/*
 * Reads the index `name` in the folder `dirfd`; `path` is for messages. The shards are names inside the folder, at most
 * CHECKPOINT_MAX_SHARDS, not opened yet. Release with index_fini; *index is untouched on failure. IPCC_INVALID,
 * IPCC_REFUSED (a limit) or as source_open.
 */
int index_read(struct index *index, int dirfd, const char *name, const char *path, struct ipcc_error *err);

/* files[i] is shard i, parsed: is every tensor where the index says, and nothing else anywhere? IPCC_INVALID names file
 * and tensor. To be called once. */
int index_check(struct index *index, const struct checkpoint_file *files, struct ipcc_error *err);

/* A tensor that the index assigns to that shard, for a message. */
const char *index_tensor_of(const struct index *index, uint32_t shard);

/* Harmless on a zeroed struct. */
void index_fini(struct index *index);

#endif
