/*
 * Keys: checked, sorted and packed once, then compared as bytes.
 *
 * A key is one allocation (fields, their strings, the packed form), so it cannot be half made. Both ways in go through
 * the same list of spans and the same checks; nothing is copied before all of them passed.
 */
#include "manifest/key.h"

#include "manifest/bytes.h"
#include "manifest/fail.h"
#include "manifest/format.h"
#include "manifest/utf8.h"

#include <ctype.h>
#include <stdlib.h>

struct span {
	const char *name, *value;
	size_t name_bytes, value_bytes;
};

struct packed_lengths {
	le16 name_bytes;
	le16 value_bytes;
};

static bool is_name_character(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
}

const char *key_name_fault(const char *name, size_t bytes)
{
	if (bytes == 0)
		return "the name is empty";
	if (bytes > MANIFEST_MAX_FIELD_NAME)
		return "the name is longer than 63 bytes";
	for (size_t i = 0; i < bytes; i++)
		if (!is_name_character(name[i]))
			return "the name has a character that is not one of a-z 0-9 _ . -";
	return NULL;
}

const char *key_value_fault(const char *value, size_t bytes)
{
	if (bytes > MANIFEST_MAX_FIELD_VALUE)
		return "the value is longer than 4096 bytes";
	if (!utf8_printable(value, bytes))
		return "the value is not UTF-8 without control characters";
	return NULL;
}

static int compare_spans(const void *left, const void *right)
{
	const struct span *a = left, *b = right;
	size_t shorter = a->name_bytes < b->name_bytes ? a->name_bytes : b->name_bytes;
	int order = memcmp(a->name, b->name, shorter);
	return order != 0 ? order : (a->name_bytes > b->name_bytes) - (a->name_bytes < b->name_bytes);
}

static int check_spans(struct span *spans, uint32_t count, size_t *text_bytes, struct ipcc_error *err)
{
	size_t total = 0;

	for (uint32_t i = 0; i < count; i++) {
		const struct span *s = &spans[i];
		const char *fault = key_name_fault(s->name, s->name_bytes);
		if (fault == NULL)
			fault = key_value_fault(s->value, s->value_bytes);
		if (fault != NULL)
			return fail(err, IPCC_INVALID, "key field %u (\"%.*s\"): %s", i,
				    s->name_bytes > MANIFEST_MAX_FIELD_NAME ? MANIFEST_MAX_FIELD_NAME
									    : (int)s->name_bytes,
				    s->name, fault);
		total += s->name_bytes + s->value_bytes;
	}
	if (total > MANIFEST_MAX_KEY_BYTES)
		return fail(err, IPCC_INVALID, "key: names and values take %zu bytes together; the limit is %d", total,
			    MANIFEST_MAX_KEY_BYTES);
	qsort(spans, count, sizeof(*spans), compare_spans);
	for (uint32_t i = 1; i < count; i++)
		if (compare_spans(&spans[i - 1], &spans[i]) == 0)
			return fail(err, IPCC_INVALID, "key field \"%.*s\" is there twice", (int)spans[i].name_bytes,
				    spans[i].name);
	*text_bytes = total;
	return 0;
}

static char *put_text(char **at, const char *text, size_t bytes)
{
	char *start = *at;
	memcpy(start, text, bytes);
	start[bytes] = '\0';
	*at += bytes + 1;
	return start;
}

static uint8_t *put_packed(uint8_t *at, const struct span *s)
{
	struct packed_lengths lengths = {le16_make((uint16_t)s->name_bytes), le16_make((uint16_t)s->value_bytes)};
	memcpy(at, &lengths, sizeof(lengths));
	at += sizeof(lengths);
	memcpy(at, s->name, s->name_bytes);
	memcpy(at + s->name_bytes, s->value, s->value_bytes);
	return at + s->name_bytes + s->value_bytes;
}

static int key_build(struct key *key, struct span *spans, uint32_t count, struct ipcc_error *err)
{
	size_t text_bytes = 0;
	int code = check_spans(spans, count, &text_bytes, err);
	if (code != 0)
		return code;

	size_t fields_bytes = count * sizeof(struct ipcc_field);
	size_t packed_bytes = count * sizeof(struct packed_lengths) + text_bytes;
	struct ipcc_field *fields = malloc(fields_bytes + text_bytes + 2 * (size_t)count + packed_bytes + 1);
	if (fields == NULL)
		return fail(err, IPCC_NO_MEMORY, "key: no memory for %u fields", count);

	char *text = (char *)fields + fields_bytes;
	for (uint32_t i = 0; i < count; i++) {
		fields[i].name = put_text(&text, spans[i].name, spans[i].name_bytes);
		fields[i].value = put_text(&text, spans[i].value, spans[i].value_bytes);
	}
	uint8_t *packed = (uint8_t *)text, *end = packed;
	for (uint32_t i = 0; i < count; i++)
		end = put_packed(end, &spans[i]);
	*key = (struct key){
		.count = count,
		.fields = fields,
		.packed = packed,
		.packed_bytes = packed_bytes,
		.id = hash_bytes(packed, packed_bytes),
	};
	return 0;
}

static int check_count(uint32_t count, struct ipcc_error *err)
{
	if (count > MANIFEST_MAX_FIELDS)
		return fail(err, IPCC_INVALID, "key: %u fields; the limit is %d", count, MANIFEST_MAX_FIELDS);
	return 0;
}

int key_init(struct key *key, const struct ipcc_field *fields, uint32_t count, struct ipcc_error *err)
{
	struct span spans[MANIFEST_MAX_FIELDS];
	int code = check_count(count, err);
	if (code != 0)
		return code;

	for (uint32_t i = 0; i < count; i++) {
		if (fields[i].name == NULL || fields[i].value == NULL)
			return fail(err, IPCC_INVALID, "key field %u: no name or no value", i);
		spans[i] =
			(struct span){fields[i].name, fields[i].value, strlen(fields[i].name), strlen(fields[i].value)};
	}
	return key_build(key, spans, count, err);
}

int key_init_packed(struct key *key, const void *packed, size_t bytes, uint32_t count, struct ipcc_error *err)
{
	struct span spans[MANIFEST_MAX_FIELDS];
	struct cursor c = cursor_over(packed, bytes);
	int code = check_count(count, err);
	if (code != 0)
		return code;

	for (uint32_t i = 0; i < count; i++) {
		struct packed_lengths lengths;
		cursor_copy(&c, &lengths, sizeof(lengths));
		spans[i].name_bytes = le16_get(lengths.name_bytes);
		spans[i].value_bytes = le16_get(lengths.value_bytes);
		spans[i].name = cursor_take(&c, spans[i].name_bytes);
		spans[i].value = cursor_take(&c, spans[i].value_bytes);
	}
	if (!cursor_finished(&c))
		return fail(err, IPCC_INVALID, "key: the packed form of %u fields does not end where its %zu bytes end",
			    count, bytes);
	return key_build(key, spans, count, err);
}

void key_fini(struct key *key)
{
	free(key->fields);
	*key = (struct key){0};
}

bool key_equal(const struct key *a, const struct key *b)
{
	return a->packed_bytes == b->packed_bytes &&
	       (a->packed_bytes == 0 || memcmp(a->packed, b->packed, a->packed_bytes) == 0);
}

const char *key_value(const struct key *key, const char *name)
{
	for (uint32_t i = 0; i < key->count; i++)
		if (strcmp(key->fields[i].name, name) == 0)
			return key->fields[i].value;
	return NULL;
}

uint32_t key_differences(const struct key *want, const struct key *have, bool exact, struct key_difference *first)
{
	uint32_t differences = 0, w = 0, h = 0;

	/* Both are sorted: one merging walk. */
	while (w < want->count || h < have->count) {
		const struct ipcc_field *a = w < want->count ? &want->fields[w] : NULL;
		const struct ipcc_field *b = h < have->count ? &have->fields[h] : NULL;
		int order = a == NULL ? 1 : b == NULL ? -1 : strcmp(a->name, b->name);

		w += order <= 0;
		h += order >= 0;
		if (order > 0 && !exact)
			continue;
		if (order == 0 && strcmp(a->value, b->value) == 0)
			continue;
		if (differences++ == 0 && first != NULL)
			*first = (struct key_difference){
				.field = order > 0 ? b->name : a->name,
				.expected = order > 0 ? NULL : a->value,
				.got = order < 0 ? NULL : b->value,
			};
	}
	return differences;
}

bool key_id_matches(const struct key *key, const char *text)
{
	char id[HASH_TEXT_BYTES];
	size_t length = strlen(text);

	if (length < KEY_PREFIX_CHARS || length >= HASH_TEXT_BYTES)
		return false;
	hash_text(&key->id, id);
	for (size_t i = 0; i < length; i++)
		if (tolower((unsigned char)text[i]) != id[i])
			return false;
	return true;
}
