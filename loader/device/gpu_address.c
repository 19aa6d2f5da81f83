/* See gpu_address.h. */
#include "loader/device/gpu_address.h"

#include "bpf/probes.h"
#include "manifest/fail.h"

#include <inttypes.h>

int gpu_reserve(const struct gpu *gpu, uint64_t bytes, struct gpu_address *address, struct ipcc_error *err)
{
	cu_pointer base = 0;
	cu_result r = gpu->driver->reserve(&base, bytes, 0, 0, 0);
	if (r != CU_OK)
		return gpu_fail(gpu, r, err, "no addresses for %" PRIu64 " bytes (cuMemAddressReserve)", bytes);
	*address = (struct gpu_address){base, bytes};
	return 0;
}

void gpu_unreserve(const struct gpu *gpu, struct gpu_address *address)
{
	if (address->base != 0)
		gpu->driver->unreserve(address->base, address->bytes);
	*address = (struct gpu_address){0};
}

cu_result gpu_unmap(const struct gpu *gpu, cu_pointer base, const uint64_t *bytes, uint32_t count)
{
	cu_result first = CU_OK;
	for (uint32_t i = 0; i < count; i++) {
		cu_result r = gpu->driver->unmap(base, bytes[i]);
		first = first != CU_OK ? first : r;
		base += bytes[i];
	}
	return first;
}

int gpu_map(const struct gpu *gpu, cu_pointer base, const cu_memory *memories, const uint64_t *bytes, uint32_t count,
	    int access, struct ipcc_error *err)
{
	struct cu_access wanted = {.location = {CU_LOCATION_DEVICE, gpu->device}, .flags = access};
	cu_pointer at = base;
	for (uint32_t i = 0; i < count; i++) {
		cu_result r = gpu->driver->map(at, bytes[i], 0, memories[i], 0);
		if (r != CU_OK) {
			gpu_unmap(gpu, base, bytes, i);
			return gpu_fail(gpu, r, err, "segment %u of %" PRIu64 " bytes cannot be mapped%s (cuMemMap)", i,
					bytes[i],
					r == CU_NOT_SUPPORTED ? "; is it as large as its manifest says?" : "");
		}
		PROBE_SEGMENT_MAPPED(at, bytes[i]);
		at += bytes[i];
	}
	cu_result r = gpu->driver->set_access(base, at - base, &wanted, 1);
	if (r == CU_OK) {
		PROBE_ACCESS_SET(base, at - base);
		return 0;
	}
	gpu_unmap(gpu, base, bytes, count);
	return gpu_fail(gpu, r, err, "access to %llu mapped bytes was refused (cuMemSetAccess)", at - base);
}

/* The driver would map memory of another GPU without a word, and every access would go over the link between the two. */
static int check_owner(const struct gpu *owner, const struct cu_location *location, uint32_t i, struct ipcc_error *err)
{
	struct gpu *gpus;
	uint32_t count;
	if (location->type == CU_LOCATION_DEVICE && location->id == owner->device)
		return 0;
	if (location->type != CU_LOCATION_DEVICE)
		return fail_mismatch(err, "device", owner->name, "no GPU's memory",
				     "segment %u is not a GPU's memory, but its manifest says %s; nothing was mapped",
				     i, owner->name);
	const char *other = "a GPU that this process cannot see";
	if (gpu_all(owner->vendor, &gpus, &count, err) == 0)
		for (uint32_t k = 0; k < count; k++)
			if (gpus[k].device == location->id)
				other = gpus[k].name;
	return fail_mismatch(err, "device", owner->name, other,
			     "segment %u is memory of %s, but its manifest says %s; nothing was mapped", i, other,
			     owner->name);
}

int gpu_import(const struct gpu *owner, int fd, uint32_t i, cu_memory *memory, struct ipcc_error *err)
{
	struct cu_allocation allocation = {0};
	cu_memory imported;
	cu_result r = owner->driver->import_fd(&imported, (void *)(intptr_t)fd, CU_HANDLE_POSIX_FD);
	if (r != CU_OK)
		return gpu_fail(owner, r, err, "segment %u is no memory that this driver can import", i);
	r = owner->driver->properties(&allocation, imported);
	int rc = r == CU_OK ? check_owner(owner, &allocation.location, i, err)
			    : gpu_fail(owner, r, err, "segment %u does not tell which GPU's memory it is", i);
	if (rc != 0)
		owner->driver->release(imported);
	else
		*memory = imported;
	return rc;
}
