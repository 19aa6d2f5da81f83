/* Segments, and the hashes of their blocks. */
#include "manifest/utf8.h"
#include "manifest/validate_state.h"

/* How many block hashes validate_blocks takes at once: 64 KiB of them. */
#define BLOCKS_AT_ONCE 4096

static bool is_device_name(const char *name)
{
	return name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-")] == '\0';
}

static int check_device(struct validator *v, uint32_t i, const struct manifest_segment *raw, struct ipcc_error *err)
{
	struct place place = IN_ENTRY("segments", i, raw, device);
	const char *device;

	int code = validate_text(v, place, raw->device, (struct text_rule){1, MANIFEST_MAX_DEVICE, true}, &device, err);
	if (code == 0 && !is_device_name(device))
		code = manifest_refuse(v->m.bytes, place, err,
				       "\"%s\" has a character that is not one of A-Z a-z 0-9 _ . : -", device);
	return code;
}

/* Memory of a GPU, and no other segment's. */
static int check_legacy(struct validator *v, uint32_t i, const struct manifest_segment *raw, struct ipcc_error *err)
{
	if (strcmp(manifest_text(&v->m, raw->device), "host") == 0)
		return manifest_refuse(v->m.bytes, IN_ENTRY("segments", i, raw, handle_kind), err,
				       "a legacy handle, but host memory has none");
	v->work += (uint64_t)i * sizeof(raw->handle);
	for (uint32_t j = 0; j < i; j++) {
		const struct manifest_segment *other = manifest_entry(&v->m, SECTION_SEGMENTS, j);
		if (le32_get(other->handle_kind) == HANDLE_LEGACY &&
		    memcmp(other->handle, raw->handle, sizeof(raw->handle)) == 0)
			return manifest_refuse(v->m.bytes, IN_ENTRY("segments", i, raw, handle), err,
					       "the same as segment %u's; each needs memory of its own", j);
	}
	return 0;
}

static int check_handle(struct validator *v, uint32_t i, const struct manifest_segment *raw, struct ipcc_error *err)
{
	uint32_t kind = le32_get(raw->handle_kind), bytes = le32_get(raw->handle_bytes);

	if (kind != HANDLE_FD && kind != HANDLE_LEGACY)
		return manifest_refuse(v->m.bytes, IN_ENTRY("segments", i, raw, handle_kind), err,
				       "%u is no kind of handle", kind);
	if (kind == HANDLE_FD ? bytes != 0 : !MANIFEST_IS_LEGACY_SIZE(bytes))
		return manifest_refuse(v->m.bytes, IN_ENTRY("segments", i, raw, handle_bytes), err,
				       "%u; handles of this kind have %s", bytes,
				       kind == HANDLE_FD ? "0" : "64 or 128");
	if (!all_zero(raw->handle + bytes, sizeof(raw->handle) - bytes))
		return manifest_refuse(v->m.bytes, IN_ENTRY("segments", i, raw, handle), err,
				       "not zero behind its %u bytes", bytes);
	return kind == HANDLE_LEGACY ? check_legacy(v, i, raw, err) : 0;
}

static int check_block_range(struct validator *v, uint32_t i, const struct manifest_segment *raw,
			     struct ipcc_error *err)
{
	uint32_t first = le32_get(raw->first_block), count = le32_get(raw->block_count);

	if (count == 0) {
		if (first != 0)
			return manifest_refuse(v->m.bytes, IN_ENTRY("segments", i, raw, first_block), err,
					       "%u, but there are none", first);
		if (!all_zero(raw->hash, sizeof(raw->hash)))
			return manifest_refuse(v->m.bytes, IN_ENTRY("segments", i, raw, hash), err,
					       "not zero, but there are no blocks");
		return 0;
	}
	if (first != v->next_block)
		return manifest_refuse(v->m.bytes, IN_ENTRY("segments", i, raw, first_block), err,
				       "%u; the segments before have %u", first, v->next_block);
	if (count != hash_block_count(le64_get(raw->bytes)))
		return manifest_refuse(v->m.bytes, IN_ENTRY("segments", i, raw, block_count), err,
				       "%u; its bytes have %llu blocks", count,
				       (unsigned long long)hash_block_count(le64_get(raw->bytes)));
	if (!range_inside(first, count, v->m.counts[SECTION_BLOCKS]))
		return manifest_refuse(v->m.bytes, IN_ENTRY("segments", i, raw, block_count), err,
				       "%u from %u; there are %u", count, first, v->m.counts[SECTION_BLOCKS]);
	v->next_block += count;
	return 0;
}

int validate_segment(struct validator *v, uint32_t i, struct ipcc_error *err)
{
	const struct manifest_segment *raw = manifest_entry(&v->m, SECTION_SEGMENTS, i);
	uint64_t bytes = le64_get(raw->bytes);

	if (bytes == 0 || bytes > INT64_MAX)
		return manifest_refuse(v->m.bytes, IN_ENTRY("segments", i, raw, bytes), err,
				       "%llu is no size of a segment", (unsigned long long)bytes);
	int code = check_device(v, i, raw, err);
	if (code == 0)
		code = check_handle(v, i, raw, err);
	if (code == 0)
		code = check_block_range(v, i, raw, err);
	return code;
}

/* The hash over the blocks of segment `at`, in pieces. */
int validate_blocks(struct validator *v, bool *done, struct ipcc_error *err)
{
	const struct manifest_segment *raw = manifest_entry(&v->m, SECTION_SEGMENTS, (uint32_t)v->at);

	*done = raw == NULL;
	if (*done) {
		if (v->next_block != v->m.counts[SECTION_BLOCKS])
			return manifest_refuse(v->m.bytes, IN_ARRAY(NULL, 0, v->m.header, sections, SECTION_BLOCKS),
					       err, "blocks: %u; the segments have %u", v->m.counts[SECTION_BLOCKS],
					       v->next_block);
		return 0;
	}
	uint32_t left = le32_get(raw->block_count) - v->block, count = left < BLOCKS_AT_ONCE ? left : BLOCKS_AT_ONCE;
	if (v->block == 0)
		checksum_restart(v->sum);
	if (count > 0)
		checksum_add(v->sum, manifest_entry(&v->m, SECTION_BLOCKS, le32_get(raw->first_block) + v->block),
			     (size_t)count * HASH_BYTES);
	v->work += (uint64_t)count * HASH_BYTES / 8 + 64;
	v->block += count;
	if (count < left)
		return 0;
	struct hash128 over = checksum_hash(v->sum);
	if (v->block > 0 && memcmp(over.bytes, raw->hash, HASH_BYTES) != 0)
		return manifest_refuse(v->m.bytes, IN_ENTRY("segments", v->at, raw, hash), err,
				       "not the hash over its blocks");
	v->block = 0;
	v->at++;
	return 0;
}
