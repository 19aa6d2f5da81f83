/* A manifest for people; see describe.h. Its JSON form is in describe_json.c. */
#include "tools/describe.h"

#include "manifest/dtype.h"
#include "tools/output.h"
#include "tools/table.h"

#include <stdlib.h>
#include <string.h>

char *describe_shape(const uint64_t *shape, uint32_t rank)
{
	char *text = checked(malloc(3 + (size_t)rank * 22)), *to = text;
	*to++ = '[';
	for (uint32_t i = 0; i < rank; i++)
		to += sprintf(to, "%s%llu", i == 0 ? "" : ", ", (unsigned long long)shape[i]);
	strcpy(to, "]");
	return text;
}

const char *describe_dtype(uint32_t dtype)
{
	const char *name = dtype_name(dtype);
	return name == NULL ? "?" : name;
}

const char *describe_visibility(uint32_t visibility)
{
	switch (visibility) {
	case IPCC_VISIBLE_OWNER:
		return "owner";
	case IPCC_VISIBLE_GROUP:
		return "group";
	case IPCC_VISIBLE_ALL:
		return "all";
	default:
		return "?";
	}
}

void describe_hash(const uint8_t hash[16], char text[HASH_TEXT_BYTES])
{
	struct hash128 h;
	memcpy(h.bytes, hash, sizeof(h.bytes));
	hash_text(&h, text);
}

static int print_key(const struct manifest *m, struct ipcc_error *err)
{
	struct key key;
	int rc = manifest_key(m, &key, err);
	if (rc != IPCC_OK)
		return rc;
	char id[HASH_TEXT_BYTES];
	hash_text(&key.id, id);
	fact("key id", "%s", id);
	for (uint32_t i = 0; i < key.count; i++)
		fact(i == 0 ? "key" : "", "%s=%s", key.fields[i].name, key.fields[i].value);
	key_fini(&key);
	return IPCC_OK;
}

static void print_header(const struct manifest *m)
{
	const struct manifest_header *h = m->header;
	fact("format", "%u.%u, %s, checksum %016llx", le16_get(h->major), le16_get(h->minor),
	     text_bytes(m->total_bytes).text, (unsigned long long)le64_get(h->checksum));
	if (le64_get(h->generation) == 0) {
		fact("committed", "never: a draft");
		return;
	}
	char instance[HASH_TEXT_BYTES];
	describe_hash(h->instance, instance);
	fact("committed", "%s as generation %llu of broker %s", text_time(le64_get(h->created_ns)).text,
	     (unsigned long long)le64_get(h->generation), instance);
	uint32_t visibility = le32_get(h->visibility);
	fact("owner", "%s (uid %u), published by pid %u", text_user(le32_get(h->owner_uid)).text,
	     le32_get(h->owner_uid), le32_get(h->publisher_pid));
	if (visibility == IPCC_VISIBLE_GROUP)
		fact("visible to", "owner and group %u", le32_get(h->visible_gid));
	else
		fact("visible to", "%s", describe_visibility(visibility));
}

static int print_segments(const struct manifest *m, struct ipcc_error *err)
{
	struct ipcc_segment s;
	for (uint32_t i = 0; i < manifest_count(m, SECTION_SEGMENTS); i++) {
		int rc = manifest_segment(m, i, &s, err);
		if (rc != IPCC_OK)
			return rc;
		char hash[HASH_TEXT_BYTES];
		describe_hash(s.hash, hash);
		const char *legacy = s.handle_kind == HANDLE_LEGACY ? "  legacy handle" : "";
		if (s.block_count > 0)
			fact(i == 0 ? "segments" : "", "%u  %s  %s%s  hash %s (%u blocks)", i, s.device,
			     text_bytes(s.bytes).text, legacy, hash, s.block_count);
		else
			fact(i == 0 ? "segments" : "", "%u  %s  %s%s  not hashed", i, s.device,
			     text_bytes(s.bytes).text, legacy);
	}
	return IPCC_OK;
}

static int print_sources(const struct manifest *m, struct ipcc_error *err)
{
	struct ipcc_source s;
	for (uint32_t i = 0; i < manifest_count(m, SECTION_SOURCES); i++) {
		int rc = manifest_source(m, i, &s, err);
		if (rc != IPCC_OK)
			return rc;
		char hash[HASH_TEXT_BYTES] = "not hashed";
		if (s.hashed)
			describe_hash(s.hash, hash);
		fact(i == 0 ? "sources" : "", "%s  %s  modified %s  %s%s", s.name, text_bytes(s.bytes).text,
		     text_time(s.mtime_ns).text, s.hashed ? "hash " : "", hash);
	}
	return IPCC_OK;
}

static int print_attributes(const struct manifest *m, struct ipcc_error *err)
{
	struct ipcc_attribute a;
	for (uint32_t i = 0; i < manifest_count(m, SECTION_ATTRIBUTES); i++) {
		int rc = manifest_attribute(m, i, &a, err);
		if (rc != IPCC_OK)
			return rc;
		fact(i == 0 ? "attributes" : "", "%s  %s  %s", a.name, a.type, text_bytes(a.bytes).text);
	}
	return IPCC_OK;
}

static int print_tensors(const struct manifest *m, struct ipcc_error *err)
{
	struct table table;
	table_init(&table, "rlllrrl");
	table_row(&table, (const char *const[]){"#", "TENSOR", "DTYPE", "SHAPE", "SEGMENT", "OFFSET", "SIZE"});
	struct ipcc_tensor t;
	int rc = IPCC_OK;
	for (uint32_t i = 0; i < manifest_count(m, SECTION_TENSORS); i++) {
		rc = manifest_tensor(m, i, &t, err);
		if (rc != IPCC_OK)
			break;
		char *shape = describe_shape(t.shape, t.rank);
		table_cell(&table, "%u", i);
		table_cell(&table, "%s", t.name);
		table_cell(&table, "%s", describe_dtype(t.dtype));
		table_cell(&table, "%s", shape);
		table_cell(&table, "%u", t.segment);
		table_cell(&table, "%llu", (unsigned long long)t.offset);
		if (t.flags & IPCC_TENSOR_ALIAS)
			table_cell(&table, "shares #%u", t.alias_of);
		else
			table_cell(&table, "%s", text_size(t.bytes).text);
		free(shape);
	}
	table_print(&table);
	return rc;
}

int describe_manifest(const struct manifest *m, bool tensors, struct ipcc_error *err)
{
	fact("model", "%s", manifest_name(m));
	int rc = print_key(m, err);
	if (rc != IPCC_OK)
		return rc;
	print_header(m);
	rc = print_segments(m, err);
	if (rc == IPCC_OK)
		rc = print_sources(m, err);
	if (rc == IPCC_OK)
		rc = print_attributes(m, err);
	fact("tensors", "%u", manifest_count(m, SECTION_TENSORS));
	if (rc == IPCC_OK && tensors)
		rc = print_tensors(m, err);
	return rc;
}
