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
#include <string.h>

#define CHUNK_BYTES ((uint64_t)16 << 20)

EXPORT int ipcc_device(const char *text, char name[IPCC_DEVICE_CHARS], struct ipcc_error *err)
{
	_Static_assert(IPCC_DEVICE_CHARS == DEVICE_NAME_BYTES, "the same");
	return device_resolve(text, name, err);
}

/* Through host memory; the model is mapped. What the publication has beyond the model is zero. */
static int copy_chunks(struct ipcc_publish *publish, const struct ipcc_model *model, uint32_t i, uint64_t bytes,
		       struct ipcc_error *err)
{
	cleanup_free char *chunk = malloc(CHUNK_BYTES);
	uint64_t total = publish->segments[i].memory.bytes;
	int rc = chunk != NULL ? IPCC_OK : fail_errno(err, ENOMEM, "no memory to copy with");
	for (uint64_t done = 0; rc == IPCC_OK && done < total; done += CHUNK_BYTES) {
		uint64_t part = total - done < CHUNK_BYTES ? total - done : CHUNK_BYTES;
		uint64_t left = done < bytes ? bytes - done : 0, there = left < part ? left : part;
		memset(chunk + there, 0, part - there);
		if (there > 0)
			rc = ipcc_read(model, i, done, chunk, there, err);
		if (rc == IPCC_OK)
			rc = ipcc_publish_write(publish, i, done, chunk, part, err);
	}
	return rc;
}

/* Consecutive segments of the model on one device. */
struct run {
	const char *device;
	uint32_t first, count;
	uint64_t bytes[MANIFEST_MAX_SEGMENTS];
	bool same_sizes; /* as the publication's */
};

static int find_run(const struct ipcc_publish *publish, const struct ipcc_model *model, uint32_t first, struct run *run,
		    struct ipcc_error *err)
{
	*run = (struct run){.first = first, .same_sizes = true};
	for (uint32_t i = first; i < publish->segment_count; i++) {
		struct ipcc_segment segment;
		uint64_t bytes = publish->segments[i].memory.bytes;
		int rc = ipcc_segment(model, i, &segment, err);
		if (rc != IPCC_OK)
			return rc;
		if (run->device != NULL && strcmp(run->device, segment.device) != 0)
			break;
		if (segment.bytes > bytes)
			return fail(err, IPCC_USAGE, "segment %u is smaller than that of the model", i);
		run->device = segment.device;
		run->same_sizes = run->same_sizes && segment.bytes == bytes;
		run->bytes[run->count++] = segment.bytes;
	}
	return IPCC_OK;
}

/* From GPU to GPU. IPCC_REFUSED: not between these. */
static int pull(struct ipcc_publish *publish, const struct ipcc_model *model, const struct device *from,
		const struct run *run, struct ipcc_error *err)
{
	struct device_request request = {.device = run->device,
					 .reader = publish->device_name,
					 .fds = model->segment_fds + run->first,
					 .bytes = run->bytes,
					 .count = run->count};
	struct device_segment *segments[MANIFEST_MAX_SEGMENTS];
	struct device_range *range;
	if (model->facts.kept || from != publish->device || from->pull == NULL || !run->same_sizes)
		return fail(err, IPCC_REFUSED, "the bytes go through host memory");
	for (uint32_t i = 0; i < run->count; i++)
		segments[i] = &publish->segments[run->first + i].memory;
	int rc = from->map(&request, &range, err);
	if (rc != IPCC_OK)
		return rc;
	publish_lap_end(publish, IPCC_PHASE_MAP);
	rc = from->pull(segments, range, err);
	publish_lap_end(publish, IPCC_PHASE_BYTES);
	from->unmap(range);
	publish_lap_end(publish, IPCC_PHASE_MAP);
	return rc;
}

static int copy_run(struct ipcc_publish *publish, struct ipcc_model *model, const struct run *run,
		    struct ipcc_error *err)
{
	const struct device *from = device_find(run->device, err);
	if (from == NULL)
		return IPCC_NOT_FOUND;
	int rc = pull(publish, model, from, run, err);
	if (rc != IPCC_REFUSED)
		return rc;
	rc = model->mapped ? IPCC_OK : ipcc_map(model, 0, err);
	publish_lap_end(publish, IPCC_PHASE_MAP);
	for (uint32_t i = 0; rc == IPCC_OK && i < run->count; i++)
		rc = copy_chunks(publish, model, run->first + i, run->bytes[i], err);
	publish_lap_end(publish, IPCC_PHASE_BYTES);
	return rc;
}

static int take_hashes(struct ipcc_publish *publish, const struct ipcc_model *model, const struct run *run,
		       struct ipcc_error *err)
{
	int rc = IPCC_OK;
	for (uint32_t k = 0; rc == IPCC_OK && k < run->count; k++) {
		uint32_t i = run->first + k;
		const struct hash128 *blocks = manifest_blocks(&model->manifest, i);
		if (blocks != NULL && run->bytes[k] == publish->segments[i].memory.bytes)
			rc = ipcc_publish_hashes(publish, i, &blocks->bytes, (uint32_t)hash_block_count(run->bytes[k]),
						 err);
	}
	return rc;
}

EXPORT int ipcc_publish_copy(struct ipcc_publish *publish, struct ipcc_model *model, struct ipcc_error *err)
{
	struct run run;
	if (publish->segment_count != model->facts.segments)
		return fail(err, IPCC_USAGE, "%u segments are published, %u attached", publish->segment_count,
			    model->facts.segments);
	publish_lap(publish);
	for (uint32_t i = 0; i < publish->segment_count; i += run.count) {
		int rc = find_run(publish, model, i, &run, err);
		if (rc == IPCC_OK)
			rc = copy_run(publish, model, &run, err);
		if (rc == IPCC_OK)
			rc = take_hashes(publish, model, &run, err);
		if (rc != IPCC_OK)
			return fail_within(err, "copying");
	}
	return IPCC_OK;
}
