/*
 * Temporary folders with checkpoints in them, for the loader's tests. Every function asserts its own success.
 */
#ifndef IPCC_TESTS_LOADER_FILES_H
#define IPCC_TESTS_LOADER_FILES_H

#include "manifest/error.h"

#include <stddef.h>
#include <stdint.h>

struct files {
	char folder[64];
};

/* A new folder below /tmp; files_fini removes it with all it holds. */
void files_init(struct files *files);
void files_fini(struct files *files);

/* "folder/name", valid until the next but three calls. */
const char *files_path(const struct files *files, const char *name);
/* Writes a file, with its parent folders. */
void files_write(const struct files *files, const char *name, const void *bytes, size_t length);
void files_write_text(const struct files *files, const char *name, const char *text);
/* A safetensors file: the header's text and `data_bytes` bytes that depend on their place and on `seed`. */
void files_write_tensors(const struct files *files, const char *name, const char *header, size_t data_bytes,
			 unsigned seed);
/* The whole file, malloc'ed. */
uint8_t *files_read(const char *path, size_t *length);

/* Asserts the code and that the message contains `part`. */
void expect_error(int result, const struct ipcc_error *err, int code, const char *part);

#endif
