/*
 * GPU memory that has no fd: its creator, the keeper, holds it, and others open it by a legacy IPC handle.
 *
 * What is created stays with the process until it is destroyed; its seal ends the writing alone. What is opened is writable,
 * wherever the driver puts it, and is the same address for each handle of the same allocation: so there is no read-only, no
 * range side by side, and no mapping again at the same address. Nor can a driver be asked whose memory it is: CUDA opens
 * another GPU's, even a hidden one's, and says that it is the opener's own (tests/gpu/conformance_legacy.c). So the manifest's
 * word for the GPU is its keeper's.
 *
 * Invariant: a range has all of its segments open or does not exist.
 */
#include "loader/device/gpu_device.h"

#include "bpf/probes.h"
#include "loader/device/backends.h"
#include "loader/device/gpu.h"
#include "loader/device/range.h"
#include "loader/device/stage.h"
#include "manifest/fail.h"

#include <inttypes.h>
#include <stdlib.h>

/* Smaller ones may share their allocation, and with it their handle, with others of the process. */
#define GRANULARITY ((uint64_t)2 << 20)

/* ---- the keeper's segments ---- */

static int granularity(const char *device, uint64_t *bytes, struct ipcc_error *err)
{
	struct gpu *gpu;
	int rc = gpu_find(device, &gpu, err);
	if (rc == 0)
		*bytes = GRANULARITY;
	return rc;
}

static int allocate(struct gpu *gpu, struct device_segment *made, struct ipcc_error *err)
{
	cu_pointer address = 0;
	int rc = gpu_check_size(gpu, made->bytes, GRANULARITY, err);
	if (rc != 0)
		return rc;
	cu_result r = gpu->driver->allocate(&address, made->bytes);
	if (r != CU_OK)
		return gpu_fail(gpu, r, err, "no segment of %" PRIu64 " bytes (cuMemAlloc)", made->bytes);
	r = gpu->vendor->legacy_get(gpu->driver, address, made->handle.bytes);
	if (r != CU_OK) {
		gpu->driver->free(address);
		return gpu_fail(gpu, r, err, "its memory cannot be shared by legacy IPC (cuIpcGetMemHandle)");
	}
	made->handle.length = gpu->vendor->legacy_bytes;
	made->address = made->kept = (void *)(uintptr_t)address;
	return 0;
}

static int create(const char *device, const char *name, uint64_t bytes, struct device_segment *segment,
		  struct ipcc_error *err)
{
	(void)name;
	return gpu_segment_make(device, bytes, allocate, segment, err);
}

static int seal(struct device_segment *segment, struct ipcc_error *err)
{
	struct gpu *gpu = segment->state;
	struct stage *stage;
	if (segment->address == NULL)
		return fail(err, IPCC_USAGE, "the segment is sealed already");
	int rc = gpu_enter(gpu, err);
	if (rc != 0)
		return rc;
	rc = stage_of(gpu, &stage, err);
	if (rc == 0)
		rc = stage_flush(stage, err);
	gpu_leave(gpu);
	if (rc == 0)
		segment->address = NULL;
	return rc;
}

static void destroy(struct device_segment *segment)
{
	struct gpu *gpu = segment->state;
	if (gpu == NULL)
		return;
	bool entered = gpu_enter_anyway(gpu);
	gpu->driver->free((cu_pointer)(uintptr_t)segment->kept);
	gpu_leave_if(gpu, entered);
	segment->address = segment->kept = NULL;
	segment->state = NULL;
	gpu_close(gpu);
}

/* ---- a reader's ---- */

struct kept_range {
	struct device_range range; /* first: it is what callers see */
	struct gpu *gpu;	   /* opened */
};

/* Closes what is open and frees; in the GPU's context, if it can be had. */
static void range_free(struct kept_range *r)
{
	for (uint32_t i = 0; i < r->range.count && !r->gpu->vendor->legacy_stays; i++)
		r->gpu->driver->ipc_close((cu_pointer)(uintptr_t)r->range.addresses[i]);
	free(r);
}

/* Is it as much as its manifest says? Where the driver has no word for that, it is the keeper's. */
static int check_extent(const struct gpu *gpu, cu_pointer address, uint64_t bytes, uint32_t i, struct ipcc_error *err)
{
	cu_pointer base = 0;
	size_t whole = 0;
	if (gpu->driver->address_range == NULL)
		return 0;
	cu_result r = gpu->driver->address_range(&base, &whole, address);
	if (r != CU_OK)
		return gpu_fail(gpu, r, err, "segment %u does not tell how large it is", i);
	if (base == address && whole >= bytes)
		return 0;
	return fail(err, IPCC_INVALID, "segment %u has %zu bytes, its manifest says %" PRIu64 "; nothing was mapped", i,
		    whole, bytes);
}

static int open_segment(struct kept_range *r, const struct device_handle *handle, struct ipcc_error *err)
{
	const struct gpu *gpu = r->gpu;
	uint32_t i = r->range.count;
	cu_pointer address = 0;
	if (handle->length != gpu->vendor->legacy_bytes)
		return fail(err, IPCC_INVALID, "segment %u: a handle of %u bytes; those of %s have %u", i,
			    handle->length, gpu->name, gpu->vendor->legacy_bytes);
	cu_result result = gpu->vendor->legacy_open(gpu->driver, handle->bytes, &address);
	if (result != CU_OK)
		return gpu_fail(
			gpu, result, err,
			result == CU_INVALID_CONTEXT
				? "segment %u cannot be opened in the process that keeps it (cuIpcOpenMemHandle)"
				: "segment %u cannot be opened; has its keeper ended? (cuIpcOpenMemHandle)",
			i);
	r->range.addresses[i] = (void *)(uintptr_t)address;
	r->range.count++;
	PROBE_SEGMENT_MAPPED(address, r->range.bytes[i]);
	return check_extent(gpu, address, r->range.bytes[i], i, err);
}

static int map(const struct device_request *request, struct device_range **range, struct ipcc_error *err)
{
	struct gpu *gpu;
	if (request->access == DEVICE_PRIVATE)
		return fail(err, IPCC_REFUSED, "%s: a GPU has no copy-on-write; copy what will change",
			    request->device);
	if (request->count == 0 || request->count > MANIFEST_MAX_SEGMENTS)
		return fail(err, IPCC_USAGE, "%u segments to map", request->count);
	struct kept_range *made = device_range_new(sizeof(*made), &device_gpu_kept, request, err);
	if (made == NULL)
		return IPCC_NO_MEMORY;
	int rc = gpu_begin(request->device, &gpu, err);
	if (rc != 0) {
		range_free(made);
		return rc;
	}
	made->gpu = gpu;
	for (uint32_t i = 0; rc == 0 && i < request->count; i++)
		rc = open_segment(made, &request->handles[i], err);
	if (rc != 0)
		range_free(made);
	else
		*range = &made->range;
	gpu_leave(gpu);
	if (rc != 0)
		gpu_close(gpu);
	return rc;
}

static int fetch(const struct device_range *range, uint32_t segment, uint64_t offset, void *to, uint64_t bytes,
		 struct ipcc_error *err)
{
	return gpu_fetch(((const struct kept_range *)range)->gpu, range, segment, offset, to, bytes, err);
}

static void unmap(struct device_range *range)
{
	if (range == NULL)
		return;
	struct gpu *gpu = ((struct kept_range *)range)->gpu;
	bool entered = gpu_enter_anyway(gpu);
	range_free((struct kept_range *)range);
	gpu_leave_if(gpu, entered);
	gpu_close(gpu);
}

const struct device device_gpu_kept = {
	.open = gpu_device_open,
	.close = gpu_device_close,
	.memory = gpu_device_memory,
	.memory_check = gpu_device_memory_check,
	.granularity = granularity,
	.create = create,
	.clear = gpu_segment_clear,
	.write = gpu_segment_write,
	.read = gpu_segment_read,
	.huge_bytes = gpu_device_huge_bytes,
	.seal = seal,
	.destroy = destroy,
	.map = map,
	.fetch = fetch,
	.unmap = unmap,
};
