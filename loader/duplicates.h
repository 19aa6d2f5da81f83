/*
 * What a JSON parser no longer shows of a safetensors header: names that were given twice, and the sign of -0.
 */
#ifndef IPCC_LOADER_DUPLICATES_H
#define IPCC_LOADER_DUPLICATES_H

#include "manifest/error.h"

#include <jansson.h>
#include <stddef.h>

/*
 * `text` is valid JSON, an object, and `root` what jansson made of it (without JSON_REJECT_DUPLICATES). IPCC_INVALID,
 * naming it, for a tensor (or __metadata__) that is there twice, for a dtype, shape or data_offsets that is there twice
 * in one tensor, and for a negative number in the last two. Duplicates elsewhere (in __metadata__, in unknown members)
 * are fine: the last one counts. Linear in the text. `path` is for messages. Thread-safe.
 */
int duplicates_check(const char *text, size_t length, const json_t *root, const char *path, struct ipcc_error *err);

#endif
