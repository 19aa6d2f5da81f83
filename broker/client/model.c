/* An attached model: mapping its segments, and everything that is read from its manifest; see ipc_cache.h. */
#include "broker/client/client.h"

#include "loader/device/device.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static int map_segment(struct ipcc_model *model, uint32_t i, bool private_copy, struct ipcc_error *err)
{
	struct ipcc_segment segment;
	struct mapping *mapping = &model->mappings[i];
	int rc = manifest_segment(&model->manifest, i, &segment, err);
	if (rc != IPCC_OK)
		return rc;
	const struct device *device = device_find(segment.device, err);
	if (device == NULL)
		return fail_within(err, "segment %u", i);
	void *address;
	rc = device->map(segment.device, model->segment_fds[i], segment.bytes, private_copy, &address, err);
	if (rc != IPCC_OK)
		return fail_within(err, "segment %u", i);
	*mapping = (struct mapping){.address = address, .bytes = segment.bytes, .device = device};
	return IPCC_OK;
}

EXPORT int ipcc_map(struct ipcc_model *model, unsigned flags, struct ipcc_error *err)
{
	if ((flags & ~(unsigned)IPCC_MAP_PRIVATE) != 0)
		return fail(err, IPCC_USAGE, "map flags %#x are not known", flags);
	if (model->mapped)
		return fail(err, IPCC_USAGE, "the model is mapped already");
	int rc = IPCC_OK;
	uint32_t count = model->facts.segments;
	for (uint32_t i = 0; rc == IPCC_OK && i < count; i++)
		rc = map_segment(model, i, (flags & IPCC_MAP_PRIVATE) != 0, err);
	for (uint32_t i = 0; i < count; i++) {
		if (rc == IPCC_OK) {
			fd_close(&model->segment_fds[i]); /* the mapping holds the memory from now on */
		} else if (model->mappings[i].address != NULL) {
			model->mappings[i].device->unmap(model->mappings[i].address, model->mappings[i].bytes);
			model->mappings[i] = (struct mapping){0};
		}
	}
	model->mapped = rc == IPCC_OK;
	return rc;
}

EXPORT void ipcc_model_facts(const struct ipcc_model *model, struct ipcc_model_facts *facts)
{
	*facts = model->facts;
}

/* Beyond the last entry is the caller's mistake, not the manifest's. */
static int check_number(const struct ipcc_model *model, enum manifest_section_id section, uint32_t i, const char *what,
			struct ipcc_error *err)
{
	uint32_t count = manifest_count(&model->manifest, section);
	return i < count ? IPCC_OK : fail(err, IPCC_NOT_FOUND, "%s %u of %u", what, i, count);
}

EXPORT int ipcc_tensor(const struct ipcc_model *model, uint32_t i, struct ipcc_tensor *tensor, struct ipcc_error *err)
{
	int rc = check_number(model, SECTION_TENSORS, i, "tensor", err);
	return rc != IPCC_OK ? rc : manifest_tensor(&model->manifest, i, tensor, err);
}

EXPORT int ipcc_segment(const struct ipcc_model *model, uint32_t i, struct ipcc_segment *segment, struct ipcc_error *err)
{
	int rc = check_number(model, SECTION_SEGMENTS, i, "segment", err);
	return rc != IPCC_OK ? rc : manifest_segment(&model->manifest, i, segment, err);
}

EXPORT int ipcc_source(const struct ipcc_model *model, uint32_t i, struct ipcc_source *source, struct ipcc_error *err)
{
	int rc = check_number(model, SECTION_SOURCES, i, "source", err);
	return rc != IPCC_OK ? rc : manifest_source(&model->manifest, i, source, err);
}

EXPORT int ipcc_attribute(const struct ipcc_model *model, uint32_t i, struct ipcc_attribute *attribute,
			  struct ipcc_error *err)
{
	int rc = check_number(model, SECTION_ATTRIBUTES, i, "attribute", err);
	return rc != IPCC_OK ? rc : manifest_attribute(&model->manifest, i, attribute, err);
}

EXPORT int ipcc_field(const struct ipcc_model *model, uint32_t i, struct ipcc_field *field, struct ipcc_error *err)
{
	int rc = check_number(model, SECTION_FIELDS, i, "field", err);
	return rc != IPCC_OK ? rc : manifest_field(&model->manifest, i, field, err);
}

EXPORT int ipcc_find(const struct ipcc_model *model, const char *name, struct ipcc_tensor *tensor, struct ipcc_error *err)
{
	int64_t i = manifest_find(&model->manifest, name);
	if (i < 0)
		return fail(err, IPCC_NOT_FOUND, "model %s has no tensor named %.200s; ipc-cache dump --tensors lists them",
			    model->facts.name, name);
	return manifest_tensor(&model->manifest, (uint32_t)i, tensor, err);
}

EXPORT void *ipcc_segment_address(const struct ipcc_model *model, uint32_t segment)
{
	return segment < model->facts.segments ? model->mappings[segment].address : NULL;
}

EXPORT void *ipcc_address(const struct ipcc_model *model, const struct ipcc_tensor *tensor)
{
	if (tensor->segment >= model->facts.segments)
		return NULL;
	const struct mapping *mapping = &model->mappings[tensor->segment];
	if (mapping->address == NULL || !range_inside(tensor->offset, tensor->bytes, mapping->bytes))
		return NULL;
	return (uint8_t *)mapping->address + tensor->offset;
}

static int compare_blocks(const struct mapping *mapping, const struct hash128 *want, const struct hash128 *have,
			  uint32_t segment, struct ipcc_error *err)
{
	uint64_t count = hash_block_count(mapping->bytes);
	for (uint64_t b = 0; b < count; b++) {
		if (memcmp(want[b].bytes, have[b].bytes, HASH_BYTES) == 0)
			continue;
		char expected[HASH_TEXT_BYTES], got[HASH_TEXT_BYTES], field[64];
		hash_text(&want[b], expected);
		hash_text(&have[b], got);
		snprintf(field, sizeof(field), "segments[%u].blocks[%" PRIu64 "]", segment, b);
		return fail_mismatch(err, field, expected, got,
				     "segment %u, block %" PRIu64 " (offset %" PRIu64 "): the resident bytes are damaged (hash %s, published %s); evict the model and load it again",
				     segment, b, b * HASH_BLOCK_BYTES, got, expected);
	}
	return IPCC_OK;
}

EXPORT int ipcc_verify_segment(const struct ipcc_model *model, uint32_t i, struct ipcc_error *err)
{
	int rc = check_number(model, SECTION_SEGMENTS, i, "segment", err);
	if (rc != IPCC_OK)
		return rc;
	const struct hash128 *want = manifest_blocks(&model->manifest, i);
	const struct mapping *mapping = &model->mappings[i];
	if (want == NULL)
		return fail(err, IPCC_NOT_FOUND, "segment %u: its publisher gave no hashes", i);
	if (mapping->address == NULL)
		return fail(err, IPCC_USAGE, "map the model before its segments are verified");
	cleanup_free struct hash128 *have = malloc(hash_block_count(mapping->bytes) * sizeof(*have));
	if (have == NULL)
		return fail_errno(err, ENOMEM, "cannot verify segment %u", i);
	hash_range(mapping->address, mapping->bytes, have, 0);
	return compare_blocks(mapping, want, have, i, err);
}
