/* Publishes a checkpoint; see publish.h. */
#include "tools/publish.h"

#include "loader/device/device.h"
#include "manifest/dtype.h"
#include "tools/output.h"

#include <stdlib.h>
#include <string.h>

void publish_key(const struct checkpoint *cp, const char *device, struct ipcc_field fields[PUBLISH_FIELDS])
{
	fields[0] = (struct ipcc_field){"device", device};
	fields[1] = (struct ipcc_field){"layout", "checkpoint"};
	fields[2] = (struct ipcc_field){"model", cp->root};
}

static int publish_tensors(struct ipcc_publish *publish, const struct checkpoint *cp, const struct plan *plan,
			   struct ipcc_error *err)
{
	for (uint32_t i = 0; i < cp->tensor_count; i++) {
		const struct safetensors_tensor *from = checkpoint_tensor(cp, i);
		const struct plan_place *place = &plan->places[i];
		struct ipcc_tensor t = {.name = from->name,
					.dtype = from->dtype,
					.rank = from->rank,
					.segment = place->segment,
					.offset = place->offset,
					.bytes = place->bytes};
		/* The plan has refused what exceeds a manifest's rank. */
		memcpy(t.shape, from->shape, from->rank * sizeof(t.shape[0]));
		dtype_dense_strides(t.shape, t.rank, t.strides);
		int rc = ipcc_publish_tensor(publish, &t, err);
		if (rc != IPCC_OK)
			return rc;
	}
	return IPCC_OK;
}

static int publish_sources(struct ipcc_publish *publish, const struct checkpoint *cp, const struct fill_result *filled,
			   struct ipcc_error *err)
{
	for (uint32_t i = 0; i < cp->file_count; i++) {
		const struct source *from = &cp->files[i].header.source;
		struct ipcc_source s = {.name = cp->files[i].name,
					.device = from->device,
					.inode = from->inode,
					.bytes = from->bytes,
					.mtime_ns = from->mtime_ns,
					.ctime_ns = from->ctime_ns,
					.stat_ns = from->stat_ns,
					.hashed = 1};
		memcpy(s.hash, filled->files[i].bytes, sizeof(s.hash));
		int rc = ipcc_publish_source(publish, &s, err);
		if (rc != IPCC_OK)
			return rc;
	}
	return IPCC_OK;
}

/* The files' __metadata__ as one attribute: {"FILE": {"name": "value"}}, without files that have none. */
static int publish_metadata(struct ipcc_publish *publish, const struct checkpoint *cp, struct ipcc_error *err)
{
	json_t *files = checked(json_object());
	for (uint32_t i = 0; i < cp->file_count; i++) {
		const struct safetensors *st = &cp->files[i].header;
		json_t *pairs = checked(json_object());
		for (uint32_t j = 0; j < st->metadata_count; j++)
			json_object_set_new(pairs, st->metadata[j].name, json_text(st->metadata[j].value));
		if (st->metadata_count > 0)
			json_object_set(files, cp->files[i].name, pairs);
		json_decref(pairs);
	}
	int rc = IPCC_OK;
	if (json_object_size(files) > 0) {
		char *text = checked(json_dumps(files, JSON_COMPACT));
		struct ipcc_attribute attribute = {.name = "safetensors.metadata",
						   .type = "application/json",
						   .data = text,
						   .bytes = strlen(text)};
		rc = ipcc_publish_attribute(publish, &attribute, err);
		free(text);
	}
	json_decref(files);
	return rc;
}

static int publish_hashes(struct ipcc_publish *publish, const struct fill_result *filled, struct ipcc_error *err)
{
	for (uint32_t i = 0; i < filled->segment_count; i++) {
		const struct fill_segment *segment = &filled->segments[i];
		int rc = ipcc_publish_hashes(publish, i, &segment->blocks->bytes, (uint32_t)segment->block_count, err);
		if (rc != IPCC_OK)
			return rc;
	}
	return IPCC_OK;
}

static int write_segment(void *context, uint32_t segment, uint64_t offset, const void *from, uint64_t bytes,
			 struct ipcc_error *err)
{
	return ipcc_publish_write(context, segment, offset, from, bytes, err);
}

static int read_segment(void *context, uint32_t segment, uint64_t offset, void *to, uint64_t bytes,
			struct ipcc_error *err)
{
	return ipcc_publish_read(context, segment, offset, to, bytes, err);
}

static int fill_publication(struct ipcc_publish *publish, const struct checkpoint *cp, const struct plan *plan,
			    const char *device, const struct fill_options *fill, struct ipcc_error *err)
{
	struct sink sink = {.context = publish, .write = write_segment, .read = read_segment};
	struct fill_options options = *fill;
	if (strcmp(device, DEVICE_HOST) != 0)
		options.sink = &sink;
	void **segments = checked(calloc(plan->segment_count, sizeof(*segments)));
	for (uint32_t i = 0; i < plan->segment_count; i++)
		segments[i] = ipcc_publish_address(publish, i);
	struct fill_result filled = {0};
	int rc = fill_run(cp, plan, segments, &options, &filled, err);
	if (rc == IPCC_OK)
		rc = publish_tensors(publish, cp, plan, err);
	if (rc == IPCC_OK)
		rc = publish_sources(publish, cp, &filled, err);
	if (rc == IPCC_OK)
		rc = publish_metadata(publish, cp, err);
	if (rc == IPCC_OK)
		rc = publish_hashes(publish, &filled, err);
	fill_result_fini(&filled);
	free(segments);
	return rc;
}

int publish_checkpoint(struct ipcc_client *client, const struct checkpoint *cp, const struct plan *plan,
		       const struct ipcc_publish_options *options, const struct fill_options *fill,
		       uint64_t *generation, struct ipcc_error *err)
{
	struct ipcc_publish *publish;
	struct ipcc_publish_options complete = *options;
	complete.segment_bytes = plan->segment_bytes;
	complete.segment_count = plan->segment_count;
	int rc = ipcc_publish_begin(client, &complete, &publish, err);
	if (rc != IPCC_OK)
		return rc;
	rc = fill_publication(publish, cp, plan, options->device, fill, err);
	if (rc == IPCC_OK)
		rc = ipcc_publish_commit(publish, NULL, generation, err);
	ipcc_publish_free(publish);
	return rc;
}
