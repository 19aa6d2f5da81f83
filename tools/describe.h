/*
 * What several verbs show of tensors, keys and manifests, for people and as JSON, written once.
 */
#ifndef IPCC_TOOLS_DESCRIBE_H
#define IPCC_TOOLS_DESCRIBE_H

#include "broker/client/ipc_cache.h"
#include "manifest/reader.h"
#include "manifest/views.h"

#include <jansson.h>
#include <stdbool.h>

/* "[30522, 384]"; the caller frees it. */
char *describe_shape(const uint64_t *shape, uint32_t rank);
/* "BF16", or "?" for a number that is no dtype. */
const char *describe_dtype(uint32_t dtype);
/* "owner", "group" or "all". */
const char *describe_visibility(uint32_t visibility);
void describe_hash(const uint8_t hash[16], char text[HASH_TEXT_BYTES]);

json_t *describe_numbers(const uint64_t *numbers, uint32_t count);
json_t *describe_fields(const struct ipcc_field *fields, uint32_t count);
json_t *describe_holders(const struct ipcc_listing *model);

/* The whole manifest; its tensors only with `tensors`. IPCC_INVALID for an entry that points outside of it: what comes
 * before was printed already, while no document is made. */
int describe_manifest(const struct manifest *m, bool tensors, struct ipcc_error *err);
int describe_manifest_json(const struct manifest *m, bool tensors, json_t **document, struct ipcc_error *err);

#endif
