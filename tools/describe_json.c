/* A manifest as JSON; see describe.h. Field names are documented in ipc-cache(1). */
#include "tools/describe.h"
#include "tools/output.h"
#include "tools/text.h"

#include <stdlib.h>
#include <string.h>

json_t *describe_numbers(const uint64_t *numbers, uint32_t count)
{
	json_t *array = checked(json_array());
	for (uint32_t i = 0; i < count; i++)
		json_array_append_new(array, json_number(numbers[i]));
	return array;
}

json_t *describe_fields(const struct ipcc_field *fields, uint32_t count)
{
	json_t *object = checked(json_object());
	for (uint32_t i = 0; i < count; i++)
		json_object_set_new(object, fields[i].name, json_text(fields[i].value));
	return object;
}

json_t *describe_holders(const struct ipcc_listing *model)
{
	json_t *array = checked(json_array());
	for (uint32_t i = 0; i < model->holder_count; i++) {
		const struct ipcc_holder *holder = &model->holders[i];
		struct short_text command = text_command(holder->pid);
		json_array_append_new(
			array, json_pack("{s:o, s:o, s:o, s:o}", "pid", json_number((uint64_t)holder->pid), "uid",
					 json_number(holder->uid), "since_ns", json_number(holder->since_ns), "command",
					 command.text[0] == '\0' ? json_null() : json_text(command.text)));
	}
	return array;
}

static json_t *tensor_flags(uint32_t flags)
{
	json_t *array = checked(json_array());
	if (flags & IPCC_TENSOR_PARAMETER)
		json_array_append_new(array, json_text("parameter"));
	if (flags & IPCC_TENSOR_BUFFER)
		json_array_append_new(array, json_text("buffer"));
	if (flags & IPCC_TENSOR_ALIAS)
		json_array_append_new(array, json_text("alias"));
	return array;
}

static int key_json(const struct manifest *m, json_t *document, struct ipcc_error *err)
{
	struct key key;
	int rc = manifest_key(m, &key, err);
	if (rc != IPCC_OK)
		return rc;
	json_object_set_new(document, "key_id", json_hex(key.id.bytes, sizeof(key.id.bytes)));
	json_object_set_new(document, "key", describe_fields(key.fields, key.count));
	key_fini(&key);
	return IPCC_OK;
}

/* The entries as JSON: each stores a new object in *entry, or returns an error. */
typedef int entry_function(const struct manifest *m, uint32_t i, json_t **entry, struct ipcc_error *err);

static int segment_json(const struct manifest *m, uint32_t i, json_t **entry, struct ipcc_error *err)
{
	struct ipcc_segment s;
	int rc = manifest_segment(m, i, &s, err);
	if (rc != IPCC_OK)
		return rc;
	*entry = json_pack("{s:o, s:o, s:s, s:o, s:o, s:o}", "device", json_text(s.device), "bytes",
			   json_number(s.bytes), "handle", s.handle_kind == HANDLE_FD ? "fd" : "legacy", "handle_hex",
			   s.handle_bytes > 0 ? json_hex(s.handle, s.handle_bytes) : json_null(), "blocks",
			   json_number(s.block_count), "hash",
			   s.block_count > 0 ? json_hex(s.hash, sizeof(s.hash)) : json_null());
	return IPCC_OK;
}

static int source_json(const struct manifest *m, uint32_t i, json_t **entry, struct ipcc_error *err)
{
	struct ipcc_source s;
	int rc = manifest_source(m, i, &s, err);
	if (rc != IPCC_OK)
		return rc;
	*entry = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name", json_text(s.name), "bytes",
			   json_number(s.bytes), "device", json_number(s.device), "inode", json_number(s.inode),
			   "mtime_ns", json_number(s.mtime_ns), "ctime_ns", json_number(s.ctime_ns), "stat_ns",
			   json_number(s.stat_ns), "hash", s.hashed ? json_hex(s.hash, sizeof(s.hash)) : json_null());
	return IPCC_OK;
}

/* What an attribute holds, if its type says that it is text. */
static json_t *attribute_content(const struct ipcc_attribute *a)
{
	bool text = strcmp(a->type, "application/json") == 0 || strncmp(a->type, "text/", 5) == 0;
	json_t *content = text ? json_stringn(a->data, a->bytes) : NULL;
	return content == NULL ? json_null() : content; /* NULL when it is no UTF-8 */
}

static int attribute_json(const struct manifest *m, uint32_t i, json_t **entry, struct ipcc_error *err)
{
	struct ipcc_attribute a;
	int rc = manifest_attribute(m, i, &a, err);
	if (rc != IPCC_OK)
		return rc;
	*entry = json_pack("{s:o, s:o, s:o, s:o}", "name", json_text(a.name), "type", json_text(a.type), "bytes",
			   json_number(a.bytes), "content", attribute_content(&a));
	return IPCC_OK;
}

static int tensor_json(const struct manifest *m, uint32_t i, json_t **entry, struct ipcc_error *err)
{
	struct ipcc_tensor t, owner;
	int rc = manifest_tensor(m, i, &t, err);
	if (rc == IPCC_OK && (t.flags & IPCC_TENSOR_ALIAS))
		rc = manifest_tensor(m, t.alias_of, &owner, err);
	if (rc != IPCC_OK)
		return rc;
	*entry = json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name", json_text(t.name), "dtype",
			   describe_dtype(t.dtype), "shape", describe_numbers(t.shape, t.rank), "strides",
			   describe_numbers(t.strides, t.rank), "segment", json_number(t.segment), "offset",
			   json_number(t.offset), "bytes", json_number(t.bytes), "flags", tensor_flags(t.flags),
			   "alias_of", t.flags & IPCC_TENSOR_ALIAS ? json_text(owner.name) : json_null());
	return IPCC_OK;
}

static int entries_json(const struct manifest *m, enum manifest_section_id section, entry_function *function,
			json_t *document, const char *name, struct ipcc_error *err)
{
	json_t *array = checked(json_array());
	json_object_set_new(document, name, array);
	for (uint32_t i = 0; i < manifest_count(m, section); i++) {
		json_t *entry;
		int rc = function(m, i, &entry, err);
		if (rc != IPCC_OK)
			return rc;
		json_array_append_new(array, checked(entry));
	}
	return IPCC_OK;
}

static json_t *header_json(const struct manifest *m)
{
	const struct manifest_header *h = m->header;
	char *format = format_text("%u.%u", le16_get(h->major), le16_get(h->minor));
	char *checksum = format_text("%016llx", (unsigned long long)le64_get(h->checksum));
	json_t *document = json_pack(
		"{s:o, s:s, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:o}", "name",
		json_text(manifest_name(m)), "format", format, "manifest_bytes", json_number(m->total_bytes),
		"checksum", checksum, "instance", json_hex(h->instance, sizeof(h->instance)), "generation",
		json_number(le64_get(h->generation)), "created_ns", json_number(le64_get(h->created_ns)), "owner_uid",
		json_number(le32_get(h->owner_uid)), "publisher_pid", json_number(le32_get(h->publisher_pid)),
		"visibility", describe_visibility(le32_get(h->visibility)), "visible_gid",
		json_number(le32_get(h->visible_gid)), "block_bytes", json_number(le64_get(h->block_bytes)),
		"tensor_count", json_number(manifest_count(m, SECTION_TENSORS)));
	free(format);
	free(checksum);
	return checked(document);
}

int describe_manifest_json(const struct manifest *m, bool tensors, json_t **document, struct ipcc_error *err)
{
	json_t *described = header_json(m);
	int rc = key_json(m, described, err);
	if (rc == IPCC_OK)
		rc = entries_json(m, SECTION_SEGMENTS, segment_json, described, "segments", err);
	if (rc == IPCC_OK)
		rc = entries_json(m, SECTION_SOURCES, source_json, described, "sources", err);
	if (rc == IPCC_OK)
		rc = entries_json(m, SECTION_ATTRIBUTES, attribute_json, described, "attributes", err);
	if (rc == IPCC_OK && tensors)
		rc = entries_json(m, SECTION_TENSORS, tensor_json, described, "tensors", err);
	if (rc != IPCC_OK) {
		json_decref(described);
		return rc;
	}
	*document = described;
	return IPCC_OK;
}
