/*
 * JSON from files that nobody vouches for: bounded before anything is allocated, errors with the file's own offsets.
 */
#ifndef IPCC_LOADER_JSON_H
#define IPCC_LOADER_JSON_H

#include "manifest/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* In one text. A parsed value takes some 50 bytes, a comma in the text one. Enough for any index; a header is parsed one
 * tensor at a time. */
#define JSON_MAX_VALUES 8000000

/*
 * Parses `length` bytes of JSON that start at `offset` of the file `path` (for messages); white space may follow.
 * `flags` are jansson's. *value is the caller's (json_decref). IPCC_INVALID: no JSON, with the offset in the file;
 * IPCC_REFUSED: more than JSON_MAX_VALUES values. Thread-safe.
 */
int json_read(const char *text, size_t length, size_t flags, const char *path, uint64_t offset, json_t **value,
	      struct ipcc_error *err);

#endif
