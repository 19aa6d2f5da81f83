/*
 * Parses the header of one safetensors file:
 *
 *	le64 header_bytes | JSON of header_bytes bytes | the tensors' data
 *
 * What passes has unique tensor names and known dtypes; its tensors cover the data exactly, without holes, overlaps or
 * trailing bytes, each dense. Stricter than the reference parser 0.8 where that takes what its own specification
 * forbids: duplicate names, NUL in names, structures written as arrays.
 *
 * The file is not kept open: whoever reads the data later opens it again and compares its identity (source.h).
 */
#ifndef IPCC_LOADER_SAFETENSORS_H
#define IPCC_LOADER_SAFETENSORS_H

#include "loader/source.h"
#include "manifest/error.h"

#include <stdint.h>

#define SAFETENSORS_MAX_HEADER_BYTES ((uint64_t)100000000)
/* More tensors than this would not fit into a manifest (MANIFEST_MAX_BYTES). */
#define SAFETENSORS_MAX_TENSORS 381300

struct safetensors_tensor {
	const char *name; /* UTF-8 without NUL; may be empty */
	uint32_t dtype;	  /* enum ipcc_dtype */
	uint32_t rank;	  /* any: a manifest's limit is the plan's business */
	const uint64_t *shape;
	uint64_t begin; /* in the file, from its first byte */
	uint64_t end;	/* begin + the dense size in bytes */
};

struct safetensors_pair {
	const char *name;
	const char *value;
};

/* Immutable once read; may be shared between threads. Everything inside belongs to it. */
struct safetensors {
	char *path; /* as shown in messages */
	struct source source;
	uint64_t data_begin; /* where the data starts: 8 + the header's length */
	uint32_t tensor_count;
	uint32_t metadata_count;
	struct safetensors_tensor *tensors; /* by begin, then end, then name */
	struct safetensors_pair *metadata;  /* __metadata__, in the file's order */
	char *text;			    /* what names and values point into */
	uint64_t *shapes;		    /* what shapes point into */
};

/*
 * Reads and checks the header of `name`, relative to `dirfd` (or AT_FDCWD); `path` is the path for messages. Release
 * with safetensors_fini. On failure *st is untouched, and the message names file, offset or tensor, and the reason:
 * those of source_open; IPCC_REFUSED: another format; IPCC_INVALID: breaks a rule. Thread-safe.
 */
int safetensors_read(struct safetensors *st, int dirfd, const char *name, const char *path, struct ipcc_error *err);

/* Harmless on a zeroed struct. */
void safetensors_fini(struct safetensors *st);

#endif
