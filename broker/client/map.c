/*
 * Mapping an attached model: all segments or none, those of one device side by side.
 *
 * Invariant: mappings[i].range is NULL, or the range that holds segment i; addresses are the same from the first map until
 * the model is freed.
 */
#include "broker/client/client.h"

#include "bpf/probes.h"
#include "loader/device/device.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <string.h>

void model_unmap(struct ipcc_model *model)
{
	fault_forget(model);
	for (uint32_t i = 0; i < model->range_count; i++)
		model->ranges[i]->device->unmap(model->ranges[i]);
	for (uint32_t i = 0; model->mappings != NULL && i < model->facts.segments; i++)
		model->mappings[i] = (struct mapping){0};
	model->range_count = 0;
	model->mapped = model->suspended = false;
}

/* Maps the segments from `first` on that are on the same device; *count is how many. */
static int map_run(struct ipcc_model *model, uint32_t first, enum device_access access, uint32_t *count,
		   struct ipcc_error *err)
{
	uint64_t bytes[MANIFEST_MAX_SEGMENTS];
	struct ipcc_segment segment, next;
	struct device_handle handles[MANIFEST_MAX_SEGMENTS];
	struct device_request request = {
		.fds = model->segment_fds + first, .handles = handles, .bytes = bytes, .access = access};
	int rc = manifest_segment(&model->manifest, first, &segment, err);
	const struct device *device = rc != IPCC_OK	  ? NULL
				      : model->facts.kept ? device_find_kept(segment.device, err)
							  : device_find(segment.device, err);
	if (device == NULL)
		return rc != IPCC_OK ? rc : fail_within(err, "segment %u", first);
	request.device = segment.device;
	for (next = segment; rc == IPCC_OK && strcmp(next.device, segment.device) == 0;) {
		handles[request.count].length = next.handle_bytes;
		memcpy(handles[request.count].bytes, next.handle, sizeof(next.handle));
		bytes[request.count++] = next.bytes;
		if (first + request.count == model->facts.segments)
			break;
		rc = manifest_segment(&model->manifest, first + request.count, &next, err);
	}
	struct device_range *range;
	if (rc == IPCC_OK)
		rc = device->map(&request, &range, err);
	if (rc != IPCC_OK)
		return rc;
	model->ranges[model->range_count++] = range;
	for (uint32_t i = 0; i < request.count; i++)
		model->mappings[first + i] = (struct mapping){range->addresses[i], range->bytes[i], range, i};
	*count = request.count;
	return IPCC_OK;
}

/* A kept model that is mapped or could not be: has its keeper ended meanwhile? Then nothing of it stays mapped. */
static int check_keeper(struct ipcc_model *model, int rc, struct ipcc_error *err)
{
	if (!model->facts.kept || ipcc_lease_state(model) != IPCC_LEASE_LOST)
		return rc;
	return fail(err, IPCC_NOT_FOUND, "%s is lost: its keeper, process %d, has ended, and the memory with it",
		    model->facts.name, model->facts.publisher_pid);
}

static int map(struct ipcc_model *model, unsigned flags, struct ipcc_error *err)
{
	if ((flags & ~(unsigned)IPCC_MAP_PRIVATE) != 0)
		return fail(err, IPCC_USAGE, "map flags %#x are not known", flags);
	if (model->mapped)
		return fail(err, IPCC_USAGE, "the model is mapped already");
	if (model->facts.kept && model->client == NULL)
		return fail(err, IPCC_USAGE,
			    "the lease is over, and with it the hold on the keeper's memory; attach again");
	int rc = IPCC_OK;
	enum device_access access = (flags & IPCC_MAP_PRIVATE) != 0 ? DEVICE_PRIVATE : DEVICE_READ;
	for (uint32_t i = 0, count = 0; rc == IPCC_OK && i < model->facts.segments; i += count)
		rc = map_run(model, i, access, &count, err);
	rc = check_keeper(model, rc, err);
	if (rc != IPCC_OK) {
		model_unmap(model);
		return rc;
	}
	/* The mapping holds the memory from now on. */
	for (uint32_t i = 0; i < model->facts.segments; i++)
		if (model->mappings[i].range->device->is_host)
			fd_close(&model->segment_fds[i]);
	model->map_flags = flags;
	model->mapped = true;
	return IPCC_OK;
}

EXPORT int ipcc_map(struct ipcc_model *model, unsigned flags, struct ipcc_error *err)
{
	PROBE_MAP_STARTED(model, model->client);
	int rc = map(model, flags, err);
	PROBE_MAP_FINISHED(model, rc, model->facts.bytes, model->facts.segments, model->facts.tensors);
	return rc;
}

EXPORT int ipcc_suspend(struct ipcc_model *model, struct ipcc_error *err)
{
	int rc = IPCC_OK;
	if (!model->mapped || model->suspended)
		return fail(err, IPCC_USAGE, "the model is not mapped");
	for (uint32_t i = 0; i < model->range_count; i++)
		if (model->ranges[i]->device->suspend == NULL)
			return fail(err, IPCC_REFUSED, "%s",
				    model->ranges[i]->device->is_host
					    ? "host memory is shared page by page with all other readers; there is "
					      "nothing to give back"
					    : "a keeper's memory cannot be mapped again at the same addresses; "
					      "detach, and attach again when it is needed");
	model->suspended = true;
	for (uint32_t i = 0; i < model->range_count; i++) {
		int one = model->ranges[i]->device->suspend(model->ranges[i], rc == IPCC_OK ? err : NULL);
		rc = rc != IPCC_OK ? rc : one;
	}
	return rc;
}

EXPORT int ipcc_resume(struct ipcc_model *model, struct ipcc_error *err)
{
	if (!model->suspended)
		return fail(err, IPCC_USAGE, "the model is not suspended");
	uint32_t resumed = 0, first = 0;
	int rc = IPCC_OK;
	while (rc == IPCC_OK && resumed < model->range_count) {
		struct device_range *range = model->ranges[resumed];
		rc = range->device->resume(range, model->segment_fds + first, err);
		first += range->count;
		resumed += rc == IPCC_OK;
	}
	if (rc == IPCC_OK)
		model->suspended = false;
	else
		while (resumed-- > 0)
			model->ranges[resumed]->device->suspend(model->ranges[resumed], NULL);
	return rc;
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

EXPORT int ipcc_read(const struct ipcc_model *model, uint32_t segment, uint64_t offset, void *to, uint64_t bytes,
		     struct ipcc_error *err)
{
	int rc = model_check_number(model, SECTION_SEGMENTS, segment, "segment", err);
	if (rc != IPCC_OK)
		return rc;
	const struct mapping *mapping = &model->mappings[segment];
	if (mapping->range == NULL || model->suspended)
		return fail(err, IPCC_USAGE, "map the model before it is read");
	return mapping->range->device->fetch(mapping->range, mapping->place, offset, to, bytes, err);
}
