/* Entries in native types, each checked as it is read. */
#include "manifest/dtype.h"
#include "manifest/locate.h"
#include "manifest/reader.h"

static int no_entry(const struct manifest *m, enum manifest_section_id section, uint32_t i, struct ipcc_error *err)
{
	return fail(err, IPCC_INVALID, "manifest: there is no %s[%u]: %u entries", manifest_section_name(section), i,
		    m->counts[section]);
}

/* Does the strided view lie in the tensor's bytes, and those in the segment's? */
static int check_extent(const struct manifest *m, uint32_t i, const struct manifest_tensor *raw,
			const struct ipcc_tensor *t, struct ipcc_error *err)
{
	const struct manifest_segment *segment = manifest_entry(m, SECTION_SEGMENTS, t->segment);
	uint64_t bits;

	if (segment == NULL)
		return manifest_refuse(m->bytes, IN_ENTRY("tensors", i, raw, segment), err, "%u: there are %u segments",
				       t->segment, m->counts[SECTION_SEGMENTS]);
	if (!range_inside(t->offset, t->bytes, le64_get(segment->bytes)))
		return manifest_refuse(m->bytes, IN_ENTRY("tensors", i, raw, offset), err,
				       "%llu bytes at %llu are not inside segment %u of %llu bytes",
				       (unsigned long long)t->bytes, (unsigned long long)t->offset, t->segment,
				       (unsigned long long)le64_get(segment->bytes));
	if (!dtype_view_bits(t->dtype, t->shape, t->strides, t->rank, &bits) || bits / 8 + (bits % 8 != 0) > t->bytes)
		return manifest_refuse(m->bytes, IN_ENTRY("tensors", i, raw, bytes), err,
				       "shape and strides reach beyond the tensor's %llu bytes",
				       (unsigned long long)t->bytes);
	return 0;
}

static int check_tensor(const struct manifest *m, uint32_t i, const struct manifest_tensor *raw,
			const struct ipcc_tensor *t, struct ipcc_error *err)
{
	if (t->name == NULL)
		return manifest_refuse(m->bytes, IN_ENTRY("tensors", i, raw, name), err, "the string is out of bounds");
	if (dtype_bits(t->dtype) == 0)
		return manifest_refuse(m->bytes, IN_ENTRY("tensors", i, raw, dtype), err, "%u is no dtype", t->dtype);
	if ((t->flags & IPCC_TENSOR_ALIAS) && t->alias_of >= m->counts[SECTION_TENSORS])
		return manifest_refuse(m->bytes, IN_ENTRY("tensors", i, raw, alias_of), err, "%u: there are %u tensors",
				       t->alias_of, m->counts[SECTION_TENSORS]);
	return check_extent(m, i, raw, t, err);
}

int manifest_tensor(const struct manifest *m, uint32_t i, struct ipcc_tensor *out, struct ipcc_error *err)
{
	const struct manifest_tensor *raw = manifest_entry(m, SECTION_TENSORS, i);
	if (raw == NULL)
		return no_entry(m, SECTION_TENSORS, i, err);

	struct ipcc_tensor t = {
		.name = manifest_text(m, raw->name),
		.dtype = le32_get(raw->dtype),
		.rank = le32_get(raw->rank),
		.segment = le32_get(raw->segment),
		.flags = le32_get(raw->flags),
		.offset = le64_get(raw->offset),
		.bytes = le64_get(raw->bytes),
		.alias_of = le32_get(raw->alias_of),
	};
	if (t.rank > MANIFEST_MAX_RANK)
		return manifest_refuse(m->bytes, IN_ENTRY("tensors", i, raw, rank), err, "%u; the limit is %d", t.rank,
				       MANIFEST_MAX_RANK);
	for (uint32_t d = 0; d < t.rank; d++) {
		t.shape[d] = le64_get(raw->shape[d]);
		t.strides[d] = le64_get(raw->strides[d]);
	}
	int code = check_tensor(m, i, raw, &t, err);
	if (code == 0)
		*out = t;
	return code;
}

int manifest_segment(const struct manifest *m, uint32_t i, struct ipcc_segment *out, struct ipcc_error *err)
{
	const struct manifest_segment *raw = manifest_entry(m, SECTION_SEGMENTS, i);
	if (raw == NULL)
		return no_entry(m, SECTION_SEGMENTS, i, err);

	struct ipcc_segment s = {
		.device = manifest_text(m, raw->device),
		.bytes = le64_get(raw->bytes),
		.handle_kind = le32_get(raw->handle_kind),
		.handle_bytes = le32_get(raw->handle_bytes),
		.block_count = le32_get(raw->block_count),
	};
	if (s.device == NULL)
		return manifest_refuse(m->bytes, IN_ENTRY("segments", i, raw, device), err,
				       "the string is out of bounds");
	if (s.handle_bytes > sizeof(s.handle))
		return manifest_refuse(m->bytes, IN_ENTRY("segments", i, raw, handle_bytes), err,
				       "%u; the limit is %zu", s.handle_bytes, sizeof(s.handle));
	if (!range_inside(le32_get(raw->first_block), s.block_count, m->counts[SECTION_BLOCKS]))
		return manifest_refuse(m->bytes, IN_ENTRY("segments", i, raw, block_count), err,
				       "%u from %u: there are %u blocks", s.block_count, le32_get(raw->first_block),
				       m->counts[SECTION_BLOCKS]);
	/* Whoever walks the hashes walks the segment with them, block by block. */
	if (s.block_count != 0 && s.block_count != hash_block_count(s.bytes))
		return manifest_refuse(m->bytes, IN_ENTRY("segments", i, raw, block_count), err,
				       "%u: %llu bytes have %llu blocks", s.block_count, (unsigned long long)s.bytes,
				       (unsigned long long)hash_block_count(s.bytes));
	memcpy(s.hash, raw->hash, sizeof(s.hash));
	memcpy(s.handle, raw->handle, sizeof(s.handle));
	*out = s;
	return 0;
}

int manifest_source(const struct manifest *m, uint32_t i, struct ipcc_source *out, struct ipcc_error *err)
{
	const struct manifest_source *raw = manifest_entry(m, SECTION_SOURCES, i);
	if (raw == NULL)
		return no_entry(m, SECTION_SOURCES, i, err);

	struct ipcc_source s = {
		.name = manifest_text(m, raw->name),
		.device = le64_get(raw->device),
		.inode = le64_get(raw->inode),
		.bytes = le64_get(raw->bytes),
		.mtime_ns = le64_get(raw->mtime_ns),
		.ctime_ns = le64_get(raw->ctime_ns),
		.stat_ns = le64_get(raw->stat_ns),
		.hashed = le32_get(raw->hashed),
	};
	if (s.name == NULL)
		return manifest_refuse(m->bytes, IN_ENTRY("sources", i, raw, name), err, "the string is out of bounds");
	memcpy(s.hash, raw->hash, sizeof(s.hash));
	*out = s;
	return 0;
}

int manifest_attribute(const struct manifest *m, uint32_t i, struct ipcc_attribute *out, struct ipcc_error *err)
{
	const struct manifest_attribute *raw = manifest_entry(m, SECTION_ATTRIBUTES, i);
	if (raw == NULL)
		return no_entry(m, SECTION_ATTRIBUTES, i, err);

	struct ipcc_attribute a = {
		.name = manifest_text(m, raw->name),
		.type = manifest_text(m, raw->type),
		.bytes = le64_get(raw->bytes),
	};
	uint64_t offset = le64_get(raw->offset);
	if (a.name == NULL)
		return manifest_refuse(m->bytes, IN_ENTRY("attributes", i, raw, name), err,
				       "the string is out of bounds");
	if (a.type == NULL)
		return manifest_refuse(m->bytes, IN_ENTRY("attributes", i, raw, type), err,
				       "the string is out of bounds");
	if (!range_inside(offset, a.bytes, m->counts[SECTION_DATA]))
		return manifest_refuse(m->bytes, IN_ENTRY("attributes", i, raw, offset), err,
				       "%llu bytes at %llu are not inside the %u bytes of data",
				       (unsigned long long)a.bytes, (unsigned long long)offset,
				       m->counts[SECTION_DATA]);
	a.data = m->sections[SECTION_DATA] + offset;
	*out = a;
	return 0;
}

int manifest_field(const struct manifest *m, uint32_t i, struct ipcc_field *out, struct ipcc_error *err)
{
	const struct manifest_field *raw = manifest_entry(m, SECTION_FIELDS, i);
	if (raw == NULL)
		return no_entry(m, SECTION_FIELDS, i, err);

	struct ipcc_field f = {.name = manifest_text(m, raw->name), .value = manifest_text(m, raw->value)};
	if (f.name == NULL)
		return manifest_refuse(m->bytes, IN_ENTRY("fields", i, raw, name), err, "the string is out of bounds");
	if (f.value == NULL)
		return manifest_refuse(m->bytes, IN_ENTRY("fields", i, raw, value), err, "the string is out of bounds");
	*out = f;
	return 0;
}

const struct hash128 *manifest_blocks(const struct manifest *m, uint32_t i)
{
	struct ipcc_segment segment;
	if (manifest_segment(m, i, &segment, NULL) != 0 || segment.block_count == 0)
		return NULL;
	const struct manifest_segment *raw = manifest_entry(m, SECTION_SEGMENTS, i);
	return manifest_entry(m, SECTION_BLOCKS, le32_get(raw->first_block));
}

int manifest_key(const struct manifest *m, struct key *key, struct ipcc_error *err)
{
	struct ipcc_field fields[MANIFEST_MAX_FIELDS];
	uint32_t count = m->counts[SECTION_FIELDS];

	if (count > MANIFEST_MAX_FIELDS)
		return fail(err, IPCC_INVALID, "manifest: %u fields; the limit is %d", count, MANIFEST_MAX_FIELDS);
	for (uint32_t i = 0; i < count; i++) {
		int code = manifest_field(m, i, &fields[i], err);
		if (code != 0)
			return code;
	}
	return key_init(key, fields, count, err);
}
