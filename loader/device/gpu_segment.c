/*
 * A publisher's segments on a GPU: memory that is exported as an fd from the start, mapped writable until it is sealed.
 *
 * Sealing cannot take the fd's power away: whoever holds it may map it writable. It ends the mapping, and is the point at
 * which all uploads are known to have arrived.
 */
#include "loader/device/gpu_device.h"

#include "loader/device/gpu_address.h"
#include "loader/device/stage.h"
#include "manifest/bytes.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>

/* The writable mapping of a segment, whose state is the GPU. */
static struct gpu_address address_of(const struct device_segment *segment)
{
	return (struct gpu_address){(cu_pointer)(uintptr_t)segment->address, segment->bytes};
}

static int export_memory(const struct gpu *gpu, cu_memory memory, int *fd, struct ipcc_error *err)
{
	cleanup_fd int exported = -1;
	cu_result r = gpu->driver->export_fd(&exported, memory, CU_HANDLE_POSIX_FD, 0);
	if (r != CU_OK)
		return gpu_fail(gpu, r, err, "the memory cannot be exported as a file descriptor");
	if (fcntl(exported, F_SETFD, FD_CLOEXEC) < 0)
		return fail_errno(err, errno, "%s: an exported segment", gpu->name);
	*fd = fd_take(&exported);
	return 0;
}

/* Maps and exports. */
static int prepare(struct gpu *gpu, cu_memory memory, struct device_segment *made, struct ipcc_error *err)
{
	struct gpu_address address;
	int rc = gpu_reserve(gpu, made->bytes, &address, err);
	if (rc != 0)
		return rc;
	rc = gpu_map(gpu, address.base, &memory, &made->bytes, 1, CU_ACCESS_READWRITE, err);
	if (rc != 0) {
		gpu_unreserve(gpu, &address);
		return rc;
	}
	rc = export_memory(gpu, memory, &made->fd, err);
	if (rc != 0) {
		gpu_unmap(gpu, address.base, &made->bytes, 1);
		gpu_unreserve(gpu, &address);
		return rc;
	}
	made->address = (void *)(uintptr_t)address.base;
	return 0;
}

int gpu_check_size(const struct gpu *gpu, uint64_t bytes, uint64_t granularity, struct ipcc_error *err)
{
	if (bytes != 0 && bytes % granularity == 0)
		return 0;
	return fail(err, IPCC_USAGE, "%s: a segment of %" PRIu64 " bytes; sizes are multiples of %" PRIu64, gpu->name,
		    bytes, granularity);
}

static int allocate(struct gpu *gpu, struct device_segment *made, struct ipcc_error *err)
{
	struct cu_allocation allocation = gpu_allocation(gpu);
	cu_memory memory;
	uint64_t granularity = 0;
	int rc = gpu_granularity(gpu, &granularity, err);
	if (rc == 0)
		rc = gpu_check_size(gpu, made->bytes, granularity, err);
	if (rc != 0)
		return rc;
	cu_result r = gpu->driver->create(&memory, made->bytes, &allocation, 0);
	if (r == CU_OUT_OF_MEMORY)
		return fail(err, IPCC_NO_MEMORY,
			    "%s has no %" PRIu64 " bytes left for a segment; evict a model or end a "
			    "program that uses it",
			    gpu->name, made->bytes);
	if (r != CU_OK)
		return gpu_fail(gpu, r, err, "no segment of %" PRIu64 " bytes (cuMemCreate)", made->bytes);
	rc = prepare(gpu, memory, made, err);
	gpu->driver->release(memory); /* the mapping and the fd hold it */
	return rc;
}

int gpu_segment_make(const char *device, uint64_t bytes, gpu_allocate *allocate_memory, struct device_segment *segment,
		     struct ipcc_error *err)
{
	struct gpu *gpu;
	struct device_segment made = {.fd = -1, .bytes = bytes};
	int rc = gpu_begin(device, &gpu, err);
	if (rc != 0)
		return rc;
	rc = allocate_memory(gpu, &made, err);
	gpu_leave(gpu);
	if (rc != 0) {
		gpu_close(gpu);
		return rc;
	}
	made.state = gpu; /* opened until the segment is sealed or destroyed */
	*segment = made;
	return 0;
}

int gpu_segment_create(const char *device, const char *name, uint64_t bytes, struct device_segment *segment,
		       struct ipcc_error *err)
{
	(void)name;
	return gpu_segment_make(device, bytes, allocate, segment, err);
}

/* Enters the GPU of a segment that is not sealed yet. */
static int enter(const struct device_segment *segment, uint64_t offset, uint64_t bytes, struct stage **stage,
		 struct ipcc_error *err)
{
	struct gpu *gpu = segment->state;
	if (gpu == NULL || segment->address == NULL || !range_inside(offset, bytes, segment->bytes))
		return fail(err, IPCC_USAGE, "%" PRIu64 " bytes at offset %" PRIu64 " of a segment of %" PRIu64 "%s",
			    bytes, offset, segment->bytes, segment->address == NULL ? " that is sealed" : "");
	int rc = gpu_enter(gpu, err);
	if (rc != 0)
		return rc;
	rc = stage_of(gpu, stage, err);
	if (rc != 0)
		gpu_leave(gpu);
	return rc;
}

int gpu_segment_clear(struct device_segment *segment, struct ipcc_error *err)
{
	struct stage *stage;
	int rc = enter(segment, 0, segment->bytes, &stage, err);
	if (rc != 0)
		return rc;
	rc = stage_zero(stage, address_of(segment).base, segment->bytes, err);
	gpu_leave(segment->state);
	return rc;
}

int gpu_segment_write(struct device_segment *segment, uint64_t offset, const void *from, uint64_t bytes,
		      struct ipcc_error *err)
{
	struct stage *stage;
	int rc = enter(segment, offset, bytes, &stage, err);
	if (rc != 0)
		return rc;
	rc = stage_upload(stage, address_of(segment).base + offset, from, bytes, err);
	gpu_leave(segment->state);
	return rc;
}

int gpu_segment_read(const struct device_segment *segment, uint64_t offset, void *to, uint64_t bytes,
		     struct ipcc_error *err)
{
	struct stage *stage;
	int rc = enter(segment, offset, bytes, &stage, err);
	if (rc != 0)
		return rc;
	rc = stage_flush(stage, err);
	if (rc == 0)
		rc = stage_download(stage, to, address_of(segment).base + offset, bytes, err);
	gpu_leave(segment->state);
	return rc;
}

/* The mapping goes, whatever fails. */
static int unmap_segment(struct device_segment *segment, struct ipcc_error *err)
{
	struct gpu *gpu = segment->state;
	struct gpu_address address = address_of(segment);
	pthread_mutex_lock(&gpu->lock);
	struct stage *stage = gpu->stage;
	pthread_mutex_unlock(&gpu->lock);
	bool entered = gpu_enter_anyway(gpu);
	int rc = stage != NULL ? stage_flush(stage, err) : 0;
	cu_result r = gpu_unmap(gpu, address.base, &segment->bytes, 1);
	gpu_unreserve(gpu, &address);
	if (rc == 0 && r != CU_OK)
		rc = gpu_fail(gpu, r, err, "a segment cannot be unmapped");
	gpu_leave_if(gpu, entered);
	segment->address = NULL;
	segment->state = NULL;
	gpu_close(gpu);
	return rc;
}

int gpu_segment_seal(struct device_segment *segment, struct ipcc_error *err)
{
	if (segment->state == NULL)
		return fail(err, IPCC_USAGE, "the segment is sealed already");
	return unmap_segment(segment, err);
}

void gpu_segment_destroy(struct device_segment *segment)
{
	if (segment->state != NULL)
		unmap_segment(segment, NULL);
	fd_close(&segment->fd);
}
