/*
 * A checkpoint on disk: one safetensors file, or a folder of them. A folder is, in this order: what its
 * model.safetensors.index.json says; its model.safetensors; its only *.safetensors.
 *
 * What opens is complete and unambiguous: every file was parsed, every tensor of the index is in the shard that the index
 * names and nowhere else, and no shard holds anything more. The files may still change afterwards; fill.h watches that.
 */
#ifndef IPCC_LOADER_CHECKPOINT_H
#define IPCC_LOADER_CHECKPOINT_H

#include "loader/safetensors.h"
#include "manifest/error.h"

#include <stdbool.h>
#include <stdint.h>

#define CHECKPOINT_INDEX	   "model.safetensors.index.json"
#define CHECKPOINT_SINGLE	   "model.safetensors"
#define CHECKPOINT_MAX_SHARDS	   4096
#define CHECKPOINT_MAX_INDEX_BYTES ((uint64_t)64 << 20)

struct checkpoint_file {
	char *name;		   /* relative to the folder, or the file's own name as given */
	uint32_t first_tensor;	   /* number of its first tensor, counted over all files */
	struct safetensors header; /* header.path: the full path; header.source: its identity */
};

/* Immutable once open; may be shared between threads. Everything inside belongs to it. */
struct checkpoint {
	char *root;	     /* absolute, without symbolic links: the folder or the file that was given */
	bool folder;	     /* root is a folder */
	bool indexed;	     /* read through an index */
	struct source index; /* that index, if indexed */
	int dirfd;	     /* the folder, or AT_FDCWD (not owned) */
	uint32_t file_count;
	struct checkpoint_file *files; /* by name */
	uint32_t tensor_count;	       /* over all files */
	uint64_t tensor_bytes;
	uint64_t file_bytes;
};

/*
 * Opens the checkpoint at `path` and parses all its headers. Release with checkpoint_fini. On failure *cp is untouched,
 * and the message names file, offset or tensor, and the reason. IPCC_NOT_FOUND: nothing there; IPCC_REFUSED: a format
 * that is not loaded (the message says how to convert it), or a limit; IPCC_INVALID: damaged or incomplete. Thread-safe.
 */
int checkpoint_open(struct checkpoint *cp, const char *path, struct ipcc_error *err);

/* Harmless on a zeroed struct, or one that was released already. */
void checkpoint_fini(struct checkpoint *cp);

/* Opens file `i` again and checks that it is still what was parsed. *fd is the caller's. IPCC_INVALID: it changed.
 * Thread-safe. */
int checkpoint_open_file(const struct checkpoint *cp, uint32_t i, int *fd, struct ipcc_error *err);

/* The same of the index of a checkpoint that has one. */
int checkpoint_open_index(const struct checkpoint *cp, int *fd, struct ipcc_error *err);

/* The tensor of that number (0 .. tensor_count - 1), counted over all files. */
const struct safetensors_tensor *checkpoint_tensor(const struct checkpoint *cp, uint32_t number);

#endif
