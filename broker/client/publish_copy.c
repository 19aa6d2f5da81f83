/*
 * Filling a publication from a resident model: a copy on another device.
 *
 * GPU to GPU the target pulls through a read-only mapping of its own of the source's segments; everything else goes through
 * host memory, a chunk at a time.
 */
#include "broker/client/publish.h"

#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <stdlib.h>

#define CHUNK_BYTES ((uint64_t)16 << 20)

EXPORT int ipcc_device(const char *text, char name[IPCC_DEVICE_CHARS], struct ipcc_error *err)
{
	_Static_assert(IPCC_DEVICE_CHARS == DEVICE_NAME_BYTES, "the same");
	return device_resolve(text, name, err);
}

/* Through host memory; the model is mapped. */
static int copy_chunks(struct ipcc_publish *publish, const struct ipcc_model *model, uint32_t i, uint64_t bytes,
		       struct ipcc_error *err)
{
	cleanup_free void *chunk = malloc(CHUNK_BYTES);
	int rc = chunk != NULL ? IPCC_OK : fail_errno(err, ENOMEM, "no memory to copy with");
	for (uint64_t done = 0; rc == IPCC_OK && done < bytes; done += CHUNK_BYTES) {
		uint64_t part = bytes - done < CHUNK_BYTES ? bytes - done : CHUNK_BYTES;
		rc = ipcc_read(model, i, done, chunk, part, err);
		if (rc == IPCC_OK)
			rc = ipcc_publish_write(publish, i, done, chunk, part, err);
	}
	return rc;
}

static int copy_segment(struct ipcc_publish *publish, struct ipcc_model *model, uint32_t i,
			const struct ipcc_segment *segment, struct ipcc_error *err)
{
	struct device_segment *memory = &publish->segments[i].memory;
	const struct device *from = device_find(segment->device, err);
	int rc = IPCC_REFUSED;
	if (from == NULL)
		return IPCC_NOT_FOUND;
	if (!from->is_host && segment->handle_kind == HANDLE_FD && publish->device->pull != NULL &&
	    segment->bytes == memory->bytes)
		rc = publish->device->pull(memory, segment->device, model->segment_fds[i], err);
	if (rc != IPCC_REFUSED)
		return rc;
	rc = model->mapped ? IPCC_OK : ipcc_map(model, 0, err);
	return rc != IPCC_OK ? rc : copy_chunks(publish, model, i, segment->bytes, err);
}

EXPORT int ipcc_publish_copy(struct ipcc_publish *publish, struct ipcc_model *model, struct ipcc_error *err)
{
	if (publish->segment_count != model->facts.segments)
		return fail(err, IPCC_USAGE, "%u segments are published, %u attached", publish->segment_count,
			    model->facts.segments);
	for (uint32_t i = 0; i < publish->segment_count; i++) {
		struct ipcc_segment segment;
		uint64_t bytes = publish->segments[i].memory.bytes;
		int rc = ipcc_segment(model, i, &segment, err);
		if (rc == IPCC_OK && segment.bytes > bytes)
			rc = fail(err, IPCC_USAGE, "segment %u is smaller than that of the model", i);
		if (rc == IPCC_OK)
			rc = copy_segment(publish, model, i, &segment, err);
		const struct hash128 *blocks = manifest_blocks(&model->manifest, i);
		if (rc == IPCC_OK && blocks != NULL && segment.bytes == bytes)
			rc = ipcc_publish_hashes(publish, i, &blocks->bytes, segment.block_count, err);
		if (rc != IPCC_OK)
			return fail_within(err, "copying segment %u", i);
	}
	return IPCC_OK;
}
