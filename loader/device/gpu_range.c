/*
 * A reader's segments on a GPU: imported, checked, and mapped side by side in one reserved range with one change of access,
 * which is what keeps an attach at the price of its page tables.
 *
 * Invariant: a range is mapped as a whole or not at all; its addresses stay reserved until it is unmapped for good.
 */
#include "loader/device/gpu_device.h"

#include "bpf/probes.h"
#include "loader/device/backends.h"
#include "loader/device/gpu_address.h"
#include "loader/device/range.h"
#include "loader/device/stage.h"
#include "manifest/bytes.h"
#include "manifest/fail.h"

#include <inttypes.h>
#include <stdlib.h>

struct gpu_range {
	struct device_range range; /* first: it is what callers see */
	const struct gpu *owner;   /* whose memory it is */
	struct gpu *reader;	   /* opened; often the same */
	struct gpu_address address;
	int access;
	bool mapped;
};

static struct gpu_range *range_of(const struct device_range *range)
{
	return (struct gpu_range *)range;
}

/* Imports everything before anything is mapped. */
static int map_fds(struct gpu_range *r, const int *fds, struct ipcc_error *err)
{
	cu_memory memories[MANIFEST_MAX_SEGMENTS];
	uint32_t imported = 0;
	int rc = 0;
	while (rc == 0 && imported < r->range.count) {
		rc = gpu_import(r->owner, fds[imported], imported, &memories[imported], err);
		if (rc == 0) {
			PROBE_SEGMENT_IMPORTED(fds[imported], r->range.bytes[imported]);
			imported++;
		}
	}
	if (rc == 0)
		rc = gpu_map(r->reader, r->address.base, memories, r->range.bytes, r->range.count, r->access, err);
	while (imported > 0)
		r->owner->driver->release(memories[--imported]); /* the mapping holds them */
	r->mapped = rc == 0;
	return rc;
}

static int lay_out(struct gpu_range *r, uint64_t *total, struct ipcc_error *err)
{
	uint64_t granularity = 0, sum = 0;
	int rc = gpu_granularity(r->owner, &granularity, err);
	for (uint32_t i = 0; rc == 0 && i < r->range.count; i++) {
		if (r->range.bytes[i] == 0 || r->range.bytes[i] % granularity != 0 ||
		    add_overflows(sum, r->range.bytes[i], &sum))
			rc = fail(err, IPCC_INVALID, "segment %u: %" PRIu64 " bytes are no size of a segment on %s", i,
				  r->range.bytes[i], r->owner->name);
	}
	if (rc == 0)
		*total = sum;
	return rc;
}

static int check_peers(const struct gpu *reader, const struct gpu *owner, struct ipcc_error *err)
{
	int can = 0;
	if (reader == owner)
		return 0;
	if (reader->vendor != owner->vendor)
		return fail(err, IPCC_REFUSED, "%s cannot reach %s: they are of different vendors", reader->name,
			    owner->name);
	cu_result r = reader->driver->device_can_access(&can, reader->device, owner->device);
	if (r != CU_OK)
		return gpu_fail(reader, r, err, "whether it reaches %s is unknown", owner->name);
	return can ? 0 : fail(err, IPCC_REFUSED, "%s cannot reach the memory of %s", reader->name, owner->name);
}

/* With the reader's context current. */
static int range_make(const struct device_request *request, struct gpu *owner, struct gpu *reader,
		      struct gpu_range **range, struct ipcc_error *err)
{
	struct gpu_range *made = device_range_new(sizeof(*made), &device_gpu, request, err);
	uint64_t total = 0;
	if (made == NULL)
		return IPCC_NO_MEMORY;
	made->range.count = request->count;
	made->owner = owner;
	made->reader = reader;
	made->access = request->access == DEVICE_WRITE ? CU_ACCESS_READWRITE : CU_ACCESS_READ;
	int rc = lay_out(made, &total, err);
	if (rc == 0)
		rc = gpu_reserve(reader, total, &made->address, err);
	if (rc == 0)
		rc = map_fds(made, request->fds, err);
	if (rc != 0) {
		gpu_unreserve(reader, &made->address);
		free(made);
		return rc;
	}
	cu_pointer at = made->address.base;
	for (uint32_t i = 0; i < made->range.count; i++) {
		made->range.addresses[i] = (void *)(uintptr_t)at;
		at += made->range.bytes[i];
	}
	*range = made;
	return 0;
}

int gpu_range_map(const struct device_request *request, struct device_range **range, struct ipcc_error *err)
{
	struct gpu *owner, *reader;
	struct gpu_range *made = NULL;
	if (request->access == DEVICE_PRIVATE)
		return fail(err, IPCC_REFUSED,
			    "%s: a GPU has no copy-on-write; map read-only, and copy what will change",
			    request->device);
	if (request->count == 0 || request->count > MANIFEST_MAX_SEGMENTS)
		return fail(err, IPCC_USAGE, "%u segments to map", request->count);
	int rc = gpu_find(request->device, &owner, err);
	if (rc == 0)
		rc = gpu_begin(request->reader != NULL ? request->reader : request->device, &reader, err);
	if (rc != 0)
		return rc;
	rc = check_peers(reader, owner, err);
	if (rc == 0)
		rc = range_make(request, owner, reader, &made, err);
	gpu_leave(reader);
	if (rc != 0) {
		gpu_close(reader);
		return rc;
	}
	*range = &made->range;
	return 0;
}

int gpu_fetch(struct gpu *gpu, const struct device_range *range, uint32_t segment, uint64_t offset, void *to,
	      uint64_t bytes, struct ipcc_error *err)
{
	struct stage *stage;
	int rc = device_range_check(range, segment, offset, bytes, err);
	if (rc == 0)
		rc = gpu_enter(gpu, err);
	if (rc != 0)
		return rc;
	rc = stage_of(gpu, &stage, err);
	if (rc == 0)
		rc = stage_download(stage, to, (cu_pointer)(uintptr_t)range->addresses[segment] + offset, bytes, err);
	gpu_leave(gpu);
	return rc;
}

int gpu_range_fetch(const struct device_range *range, uint32_t segment, uint64_t offset, void *to, uint64_t bytes,
		    struct ipcc_error *err)
{
	const struct gpu_range *r = range_of(range);
	if (!r->mapped)
		return fail(err, IPCC_USAGE, "the segments are not mapped");
	return gpu_fetch(r->reader, range, segment, offset, to, bytes, err);
}

int gpu_range_suspend(struct device_range *range, struct ipcc_error *err)
{
	struct gpu_range *r = range_of(range);
	if (!r->mapped)
		return fail(err, IPCC_USAGE, "the segments are not mapped");
	int rc = gpu_enter(r->reader, err);
	if (rc != 0)
		return rc;
	cu_result result = gpu_unmap(r->reader, r->address.base, range->bytes, range->count);
	r->mapped = false;
	gpu_leave(r->reader);
	return result == CU_OK ? 0 : gpu_fail(r->reader, result, err, "segments cannot be unmapped");
}

int gpu_range_resume(struct device_range *range, const int *fds, struct ipcc_error *err)
{
	struct gpu_range *r = range_of(range);
	if (r->mapped)
		return fail(err, IPCC_USAGE, "the segments are mapped already");
	int rc = gpu_enter(r->reader, err);
	if (rc != 0)
		return rc;
	rc = map_fds(r, fds, err);
	gpu_leave(r->reader);
	return rc;
}

void gpu_range_unmap(struct device_range *range)
{
	struct gpu_range *r = range_of(range);
	if (range == NULL)
		return;
	bool entered = gpu_enter_anyway(r->reader);
	if (r->mapped)
		gpu_unmap(r->reader, r->address.base, range->bytes, range->count);
	gpu_unreserve(r->reader, &r->address);
	gpu_leave_if(r->reader, entered);
	gpu_close(r->reader);
	free(r);
}
