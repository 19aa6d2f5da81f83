/*
 * Model formats that are not loaded: recognised, so that the error can say what the file is and what to do with it.
 */
#ifndef IPCC_LOADER_FOREIGN_H
#define IPCC_LOADER_FOREIGN_H

#include "manifest/error.h"

#include <stddef.h>

/* Enough of a file's beginning for foreign_by_content. */
#define FOREIGN_MAGIC_BYTES 64

struct foreign;

/* The format that a file name stands for, or NULL: unknown, or safetensors. */
const struct foreign *foreign_by_name(const char *name);

/* The format of a file that begins with these bytes, or NULL. For files whose beginning is no safetensors header: the
 * bytes of a pickle could be the length of one. */
const struct foreign *foreign_by_content(const void *bytes, size_t length);

/* IPCC_REFUSED with what `path` is and how to convert it; returns the code. */
int foreign_refuse(const struct foreign *format, const char *path, struct ipcc_error *err);

#endif
