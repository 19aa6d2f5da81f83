/*
 * Adding to a builder: each call checks what the entry's structure cannot express (missing or overlong strings, too
 * many entries), copies, and leaves the builder as it was when it fails. What concerns several entries is checked when
 * the manifest is finished.
 */
#include "manifest/builder_state.h"
#include "manifest/fail.h"
#include "manifest/key.h"

#include <stdlib.h>

void builder_free(struct builder *b)
{
	if (b == NULL)
		return;
	for (size_t i = 0; i < SECTION_COUNT; i++)
		free(b->entries[i].bytes);
	free(b);
}

/* Room for `bytes` more. No buffer of a manifest can need more than the whole manifest may have. */
static int buffer_reserve(struct buffer *buffer, uint64_t bytes, struct ipcc_error *err)
{
	uint64_t needed, room = buffer->room == 0 ? 1024 : buffer->room;

	if (add_overflows((uint64_t)buffer->used, bytes, &needed) || needed > MANIFEST_MAX_BYTES)
		return fail(err, IPCC_REFUSED,
			    "builder: the manifest would be larger than %llu bytes; add less, or fewer tensors",
			    (unsigned long long)MANIFEST_MAX_BYTES);
	while (room < needed)
		room *= 2;
	if (room == buffer->room)
		return 0;
	uint8_t *grown = realloc(buffer->bytes, room);
	if (grown == NULL)
		return fail(err, IPCC_NO_MEMORY, "builder: no memory for %llu bytes", (unsigned long long)room);
	buffer->bytes = grown;
	buffer->room = room;
	return 0;
}

static void buffer_append(struct buffer *buffer, const void *bytes, size_t length)
{
	if (length > 0)
		memcpy(buffer->bytes + buffer->used, bytes, length);
	buffer->used += length;
}

static int add_string(struct builder *b, const char *text, size_t limit, const char *what, struct manifest_string *out,
		      struct ipcc_error *err)
{
	struct buffer *pool = &b->entries[SECTION_STRINGS];

	if (text == NULL)
		return fail(err, IPCC_USAGE, "builder: %s is missing", what);
	size_t length = strnlen(text, limit + 1);
	if (length > limit)
		return fail(err, IPCC_INVALID, "builder: %s is longer than %zu bytes: \"%.64s...\"", what, limit, text);
	int code = buffer_reserve(pool, length + 1, err);
	if (code != 0)
		return code;
	*out = (struct manifest_string){le32_make((uint32_t)pool->used), le32_make((uint32_t)length)};
	buffer_append(pool, text, length + 1);
	return 0;
}

/* The last step of each addition. When it fails, strings added before lie unused in the pool; nobody copies them. */
static int add_entries(struct builder *b, enum manifest_section_id section, const void *entries, uint32_t count,
		       size_t entry_bytes, struct ipcc_error *err)
{
	int code = buffer_reserve(&b->entries[section], (uint64_t)count * entry_bytes, err);
	if (code != 0)
		return code;
	buffer_append(&b->entries[section], entries, count * entry_bytes);
	b->counts[section] += count;
	return 0;
}

struct builder *builder_new(void)
{
	struct builder *b = calloc(1, sizeof(*b));

	/* The name must be a string of the pool from the start. */
	if (b != NULL && builder_set_name(b, "", NULL) != 0) {
		builder_free(b);
		b = NULL;
	}
	return b;
}

int builder_set_name(struct builder *b, const char *name, struct ipcc_error *err)
{
	return add_string(b, name, MANIFEST_MAX_NAME, "the model's name", &b->name, err);
}

int builder_add_field(struct builder *b, const char *name, const char *value, struct ipcc_error *err)
{
	struct manifest_field f;

	if (name == NULL || value == NULL)
		return fail(err, IPCC_USAGE, "builder: a key field's name or value is missing");
	const char *fault = key_name_fault(name, strlen(name));
	if (fault == NULL)
		fault = key_value_fault(value, strlen(value));
	if (fault != NULL)
		return fail(err, IPCC_INVALID, "builder: key field \"%.63s\": %s", name, fault);
	if (b->counts[SECTION_FIELDS] >= MANIFEST_MAX_FIELDS)
		return fail(err, IPCC_REFUSED, "builder: more than %d key fields", MANIFEST_MAX_FIELDS);
	int code = add_string(b, name, MANIFEST_MAX_FIELD_NAME, "a field's name", &f.name, err);
	if (code == 0)
		code = add_string(b, value, MANIFEST_MAX_FIELD_VALUE, "a field's value", &f.value, err);
	return code != 0 ? code : add_entries(b, SECTION_FIELDS, &f, 1, sizeof(f), err);
}

int builder_add_segment(struct builder *b, const struct ipcc_segment *segment, const struct hash128 *blocks,
			struct ipcc_error *err)
{
	uint32_t block_count = blocks != NULL ? segment->block_count : 0;
	struct manifest_segment s = {
		.bytes = le64_make(segment->bytes),
		.handle_kind = le32_make(segment->handle_kind),
		.handle_bytes = le32_make(segment->handle_bytes),
		.first_block = le32_make(block_count > 0 ? b->counts[SECTION_BLOCKS] : 0),
		.block_count = le32_make(block_count),
	};

	if (b->counts[SECTION_SEGMENTS] >= MANIFEST_MAX_SEGMENTS)
		return fail(err, IPCC_REFUSED, "builder: more than %d segments; use fewer, larger ones",
			    MANIFEST_MAX_SEGMENTS);
	if (segment->handle_bytes > sizeof(s.handle))
		return fail(err, IPCC_INVALID, "builder: a handle of %u bytes; the limit is %zu", segment->handle_bytes,
			    sizeof(s.handle));
	if ((blocks == NULL) != (segment->block_count == 0))
		return fail(err, IPCC_USAGE, "builder: block_count is %u, but %s block hashes were given",
			    segment->block_count, blocks == NULL ? "no" : "some");
	memcpy(s.handle, segment->handle, segment->handle_bytes);
	if (block_count > 0) {
		struct hash128 over = hash_bytes(blocks, (size_t)block_count * sizeof(*blocks));
		memcpy(s.hash, over.bytes, sizeof(s.hash));
	}
	int code = add_string(b, segment->device, MANIFEST_MAX_DEVICE, "a segment's device", &s.device, err);
	if (code == 0)
		code = buffer_reserve(&b->entries[SECTION_SEGMENTS], sizeof(s), err);
	if (code == 0)
		code = add_entries(b, SECTION_BLOCKS, blocks, block_count, sizeof(*blocks), err);
	return code != 0 ? code : add_entries(b, SECTION_SEGMENTS, &s, 1, sizeof(s), err);
}

int builder_add_tensor(struct builder *b, const struct ipcc_tensor *tensor, struct ipcc_error *err)
{
	struct manifest_tensor t = {
		.dtype = le32_make(tensor->dtype),
		.rank = le32_make(tensor->rank),
		.segment = le32_make(tensor->segment),
		.flags = le32_make(tensor->flags),
		.offset = le64_make(tensor->offset),
		.bytes = le64_make(tensor->bytes),
		.alias_of = le32_make(tensor->flags & IPCC_TENSOR_ALIAS ? tensor->alias_of : 0),
	};

	int code = add_string(b, tensor->name, MANIFEST_MAX_TENSOR_NAME, "a tensor's name", &t.name, err);
	if (code != 0)
		return code;
	if (tensor->rank > MANIFEST_MAX_RANK)
		return fail(err, IPCC_INVALID, "builder: tensor \"%s\" has rank %u; the limit is %d", tensor->name,
			    tensor->rank, MANIFEST_MAX_RANK);
	for (uint32_t d = 0; d < tensor->rank; d++) {
		t.shape[d] = le64_make(tensor->shape[d]);
		t.strides[d] = le64_make(tensor->strides[d]);
	}
	return add_entries(b, SECTION_TENSORS, &t, 1, sizeof(t), err);
}

int builder_add_source(struct builder *b, const struct ipcc_source *source, struct ipcc_error *err)
{
	struct manifest_source s = {
		.device = le64_make(source->device),
		.inode = le64_make(source->inode),
		.bytes = le64_make(source->bytes),
		.mtime_ns = le64_make(source->mtime_ns),
		.ctime_ns = le64_make(source->ctime_ns),
		.stat_ns = le64_make(source->stat_ns),
		.hashed = le32_make(source->hashed),
	};

	if (source->hashed)
		memcpy(s.hash, source->hash, sizeof(s.hash));
	int code = add_string(b, source->name, MANIFEST_MAX_SOURCE_NAME, "a source's name", &s.name, err);
	return code != 0 ? code : add_entries(b, SECTION_SOURCES, &s, 1, sizeof(s), err);
}

int builder_add_attribute(struct builder *b, const struct ipcc_attribute *attribute, struct ipcc_error *err)
{
	struct manifest_attribute a = {
		.offset = le64_make(b->entries[SECTION_DATA].used),
		.bytes = le64_make(attribute->bytes),
	};

	if (attribute->data == NULL && attribute->bytes > 0)
		return fail(err, IPCC_USAGE, "builder: an attribute's data is missing");
	int code = add_string(b, attribute->name, MANIFEST_MAX_ATTRIBUTE_NAME, "an attribute's name", &a.name, err);
	if (code == 0)
		code = add_string(b, attribute->type, MANIFEST_MAX_ATTRIBUTE_TYPE, "an attribute's type", &a.type, err);
	if (code == 0)
		code = buffer_reserve(&b->entries[SECTION_DATA], attribute->bytes, err);
	if (code == 0)
		code = add_entries(b, SECTION_ATTRIBUTES, &a, 1, sizeof(a), err);
	if (code == 0)
		buffer_append(&b->entries[SECTION_DATA], attribute->data, attribute->bytes);
	return code;
}
