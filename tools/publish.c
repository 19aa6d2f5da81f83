/* Publishes a checkpoint; see publish.h. */
#include "tools/publish.h"

#include "broker/client/publish_memory.h"
#include "loader/device/device.h"
#include "manifest/dtype.h"
#include "manifest/fail.h"
#include "manifest/fd.h"
#include "manifest/hash.h"
#include "loader/source.h"
#include "tools/clock.h"
#include "tools/output.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

uint32_t publish_key(const struct checkpoint *cp, const char *device, const char *selection,
		     struct ipcc_field fields[PUBLISH_MAX_FIELDS])
{
	fields[0] = (struct ipcc_field){"device", device};
	fields[1] = (struct ipcc_field){"layout", "checkpoint"};
	fields[2] = (struct ipcc_field){"model", cp->root};
	fields[3] = (struct ipcc_field){"selection", selection};
	return selection != NULL ? 4 : 3;
}

static int publish_tensors(struct ipcc_publish *publish, const struct checkpoint *cp, const struct plan *plan,
			   const struct selection *selection, struct ipcc_error *err)
{
	for (uint32_t i = 0; i < plan->tensor_count; i++) {
		const struct plan_place *place = &plan->places[i];
		const struct safetensors_tensor *from = checkpoint_tensor(cp, place->tensor);
		struct ipcc_tensor t = {.name = from->name,
					.dtype = from->dtype,
					.rank = from->rank,
					.segment = place->segment,
					.offset = place->offset,
					.bytes = place->bytes};
		/* The plan has refused what exceeds a manifest's rank. */
		selection_shape(selection, from, t.shape);
		dtype_dense_strides(t.shape, t.rank, t.strides);
		int rc = ipcc_publish_tensor(publish, &t, err);
		if (rc != IPCC_OK)
			return rc;
	}
	return IPCC_OK;
}

/* hash: NULL when the content was not hashed. */
static int publish_source(struct ipcc_publish *publish, const char *name, const struct source *from,
			  const struct hash128 *hash, struct ipcc_error *err)
{
	struct ipcc_source s = {.name = name,
				.device = from->device,
				.inode = from->inode,
				.bytes = from->bytes,
				.mtime_ns = from->mtime_ns,
				.ctime_ns = from->ctime_ns,
				.stat_ns = from->stat_ns,
				.hashed = hash != NULL};
	if (hash != NULL)
		memcpy(s.hash, hash->bytes, sizeof(s.hash));
	return ipcc_publish_source(publish, &s, err);
}

static int publish_sources(struct ipcc_publish *publish, const struct checkpoint *cp, const struct fill_result *filled,
			   struct ipcc_error *err)
{
	int rc = IPCC_OK;
	for (uint32_t i = 0; i < cp->file_count && rc == IPCC_OK; i++) {
		const struct checkpoint_file *file = &cp->files[i];
		const struct hash128 *hash = filled->file_hashed[i] ? &filled->files[i] : NULL;
		if (filled->file_read[i])
			rc = publish_source(publish, file->name, &file->header.source, hash, err);
	}
	return rc;
}

/* Which files a sharded model consists of is what its index says. */
static int publish_index(struct ipcc_publish *publish, const struct checkpoint *cp, struct ipcc_error *err)
{
	cleanup_fd int fd = -1;
	struct hash128 hash;
	if (!cp->indexed)
		return IPCC_OK;
	int rc = checkpoint_open_index(cp, &fd, err);
	if (rc != IPCC_OK)
		return rc;
	int failed = hash_file(fd, cp->index.bytes, 1, NULL, &hash);
	if (failed < 0)
		return fail_errno(err, -failed, "cannot read %s", CHECKPOINT_INDEX);
	return publish_source(publish, CHECKPOINT_INDEX, &cp->index, &hash, err);
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
	for (uint32_t i = 0; i < filled->segments.segment_count; i++) {
		const struct digest_segment *segment = &filled->segments.segments[i];
		int rc = ipcc_publish_hashes(publish, i, &segment->blocks->bytes, (uint32_t)segment->block_count, err);
		if (rc != IPCC_OK)
			return rc;
	}
	return IPCC_OK;
}

/* The publication as a sink. Ends the load as soon as the broker has: it says nothing by itself but its end. */
struct publish_sink {
	struct ipcc_publish *publish;
	struct pollfd broker;
};

static int check_broker(const struct publish_sink *sink, struct ipcc_error *err)
{
	struct pollfd broker = sink->broker;
	if (poll(&broker, 1, 0) > 0)
		return fail(err, IPCC_NO_BROKER, "the broker has ended the connection; nothing was published");
	return IPCC_OK;
}

static int sink_write(void *context, uint32_t segment, uint64_t offset, const void *from, uint64_t bytes,
		      struct ipcc_error *err)
{
	const struct publish_sink *sink = context;
	int rc = check_broker(sink, err);
	return rc != IPCC_OK ? rc : ipcc_publish_write(sink->publish, segment, offset, from, bytes, err);
}

static int sink_send(void *context, struct device_window *window, uint32_t segment, uint64_t offset, const void *from,
		     uint64_t bytes, struct ipcc_error *err)
{
	const struct publish_sink *sink = context;
	struct device_segment *memory = publish_memory(sink->publish, segment);
	int rc = check_broker(sink, err);
	if (rc == IPCC_OK && memory == NULL)
		rc = fail(err, IPCC_USAGE, "segment %u is not being filled", segment);
	return rc != IPCC_OK ? rc
			     : publish_device(sink->publish)->window_send(window, memory, offset, from, bytes, err);
}

static int sink_read(void *context, uint32_t segment, uint64_t offset, void *to, uint64_t bytes, struct ipcc_error *err)
{
	const struct publish_sink *sink = context;
	return ipcc_publish_read(sink->publish, segment, offset, to, bytes, err);
}

static int describe(struct ipcc_publish *publish, const struct checkpoint *cp, const struct plan *plan,
		    const struct selection *selection, const struct fill_result *filled, struct ipcc_error *err)
{
	int rc = publish_tensors(publish, cp, plan, selection, err);
	if (rc == IPCC_OK)
		rc = publish_sources(publish, cp, filled, err);
	if (rc == IPCC_OK)
		rc = publish_index(publish, cp, err);
	if (rc == IPCC_OK)
		rc = publish_metadata(publish, cp, err);
	return rc == IPCC_OK ? publish_hashes(publish, filled, err) : rc;
}

int publish_checkpoint(struct ipcc_client *client, const struct checkpoint *cp, const struct plan *plan,
		       const struct selection *selection, const struct ipcc_publish_options *options,
		       const struct fill_options *fill, struct publish_report *report, struct ipcc_error *err)
{
	struct ipcc_publish *publish;
	struct ipcc_publish_options complete = *options;
	complete.segment_bytes = plan->segment_bytes;
	complete.segment_count = plan->segment_count;
	int rc = ipcc_publish_begin(client, &complete, &publish, err);
	if (rc != IPCC_OK)
		return rc;
	struct publish_sink context = {.publish = publish, .broker = {.fd = ipcc_fd(client), .events = POLLIN}};
	struct sink sink = {.context = &context, .write = sink_write, .read = sink_read};
	if (publish_device(publish)->window_open != NULL) {
		sink.device = publish_device(publish);
		sink.device_name = options->device;
		sink.send = sink_send;
	}
	struct fill_result filled = {0};
	rc = fill_run(cp, plan, &sink, fill, &filled, err);
	if (rc == IPCC_OK) {
		report->fill = filled.report;
		report->bytes_read = filled.bytes_read;
		report->huge_bytes = ipcc_publish_huge_bytes(publish);
		rc = describe(publish, cp, plan, selection, &filled, err);
	}
	fill_result_fini(&filled);
	if (rc == IPCC_OK)
		rc = ipcc_publish_commit(publish, NULL, &report->generation, err);
	report->ready_ns = clock_ns();
	if (rc == IPCC_OK && options->keep)
		report->kept = publish;
	else
		ipcc_publish_free(publish);
	return rc;
}
