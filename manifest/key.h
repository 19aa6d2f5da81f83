/*
 * A model's key: fields name=value that together name everything that decides its bytes. Kept sorted by name, so that
 * equal keys have equal packed bytes; the packed form is also what travels in messages:
 *
 *	{le16 name_bytes, le16 value_bytes, name, value} for each field, without NULs
 *
 * The key's id is the XXH3-128 of the packed form: short enough to type, and never used to decide a match.
 */
#ifndef IPCC_MANIFEST_KEY_H
#define IPCC_MANIFEST_KEY_H

#include "manifest/error.h"
#include "manifest/hash.h"
#include "manifest/views.h"

#include <stdbool.h>
#include <stddef.h>

struct key {
	uint32_t count;
	struct ipcc_field *fields; /* sorted by name; strings owned, in the same allocation */
	uint8_t *packed;
	size_t packed_bytes;
	struct hash128 id;
};

/* Copies, sorts and checks `count` fields: names unique, not empty, [a-z0-9_.-]; values UTF-8 without control
 * characters; all within the limits of format.h. IPCC_INVALID names the field. Free with key_fini. */
int key_init(struct key *key, const struct ipcc_field *fields, uint32_t count, struct ipcc_error *err);
/* The same from the packed form (any order). The bytes are hostile. */
int key_init_packed(struct key *key, const void *packed, size_t bytes, uint32_t count, struct ipcc_error *err);
void key_fini(struct key *key);

/* What is wrong with a field's name or value, or NULL: the one place of the rules above. */
const char *key_name_fault(const char *name, size_t bytes);
const char *key_value_fault(const char *value, size_t bytes);

bool key_equal(const struct key *a, const struct key *b);
/* The value of a field, or NULL. */
const char *key_value(const struct key *key, const char *name);

/* In how many fields of `want` does `have` differ; with `exact`, fields of `have` alone count too. The first such field
 * is stored (a missing value as NULL) unless `first` is NULL. */
struct key_difference {
	const char *field;
	const char *expected;
	const char *got;
};
uint32_t key_differences(const struct key *want, const struct key *have, bool exact, struct key_difference *first);

/* Is `text` a prefix of the id in hexadecimal, at least KEY_PREFIX_CHARS long? */
#define KEY_PREFIX_CHARS 4
bool key_id_matches(const struct key *key, const char *text);

#endif
