/*
 * AMD: the HIP runtime, libamdhip64.so. Written from its public interface and tested with a stub alone: no such card was at
 * hand.
 *
 * Its functions for memory have CUDA's shapes, with two traps: before ROCm 7.1 an fd is imported through a pointer to it,
 * from then on by value; and the import is lazy, so the fd must stay open until access was set (device.h's map keeps it).
 */
#include "loader/device/backends.h"
#include "loader/device/runtime.h"
#include "manifest/bytes.h"
#include "manifest/fail.h"

#include <string.h>

#define FD_BY_VALUE 70100000 /* from this version of the runtime on */

/* What differs from CUDA in more than the name. */
static struct hip {
	struct runtime runtime;
	cu_result (*runtime_version)(int *version);
	cu_result (*import_fd)(cu_memory *memory, void *fd, cu_handle_type type);
	int version;
} hip;

#define DRIVER(slot, name)                                                                                             \
	{                                                                                                              \
		offsetof(struct driver, slot), name                                                                    \
	}
#define HIP(slot, name)                                                                                                \
	{                                                                                                              \
		sizeof(struct driver) + offsetof(struct hip, slot), name                                               \
	}
static const struct symbol symbols[] = {
	DRIVER(init, "hipInit"),
	DRIVER(version, "hipDriverGetVersion"),
	DRIVER(device_count, "hipGetDeviceCount"),
	DRIVER(device_name, "hipDeviceGetName"),
	DRIVER(device_can_access, "hipDeviceCanAccessPeer"),
	DRIVER(memory_info, "hipMemGetInfo"),
	DRIVER(granularity, "hipMemGetAllocationGranularity"),
	DRIVER(create, "hipMemCreate"),
	DRIVER(release, "hipMemRelease"),
	DRIVER(export_fd, "hipMemExportToShareableHandle"),
	DRIVER(properties, "hipMemGetAllocationPropertiesFromHandle"),
	DRIVER(reserve, "hipMemAddressReserve"),
	DRIVER(unreserve, "hipMemAddressFree"),
	DRIVER(map, "hipMemMap"),
	DRIVER(unmap, "hipMemUnmap"),
	DRIVER(set_access, "hipMemSetAccess"),
	DRIVER(fill, "hipMemsetD8Async"),
	DRIVER(upload, "hipMemcpyHtoDAsync"),
	DRIVER(download, "hipMemcpyDtoHAsync"),
	DRIVER(copy, "hipMemcpyDtoDAsync"),
	DRIVER(stream_create, "hipStreamCreateWithFlags"),
	DRIVER(stream_destroy, "hipStreamDestroy"),
	DRIVER(stream_wait, "hipStreamSynchronize"),
	DRIVER(host_allocate, "hipHostMalloc"),
	DRIVER(host_free, "hipHostFree"),
	DRIVER(host_pin, "hipHostRegister"),
	DRIVER(host_unpin, "hipHostUnregister"),
	DRIVER(allocate, "hipMalloc"),
	DRIVER(free, "hipFree"),
	DRIVER(address_range, "hipMemGetAddressRange"),
	DRIVER(ipc_get, "hipIpcGetMemHandle"),
	DRIVER(ipc_open, "hipIpcOpenMemHandle"),
	DRIVER(ipc_close, "hipIpcCloseMemHandle"),
	HIP(runtime.set_device, "hipSetDevice"),
	HIP(runtime.get_device, "hipGetDevice"),
	HIP(runtime.bus_id, "hipDeviceGetPCIBusId"),
	HIP(runtime.error_text, "hipGetErrorName"),
	HIP(runtime_version, "hipRuntimeGetVersion"),
	HIP(import_fd, "hipMemImportFromShareableHandle"),
};

static cu_result import_fd(cu_memory *memory, void *fd, cu_handle_type type)
{
	int number = (int)(intptr_t)fd;
	return hip.import_fd(memory, hip.version >= FD_BY_VALUE ? fd : &number, type);
}

static int hip_load(struct driver *driver, struct ipcc_error *err)
{
	static const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", NULL};
	struct {
		struct driver driver;
		struct hip hip;
	} opened = {0};
	void *library;
	_Static_assert(offsetof(__typeof__(opened), hip) == sizeof(struct driver), "symbols[] counts on it");
	int rc = library_open(names, symbols, array_length(symbols), &opened, &library, err);
	if (rc != 0)
		return fail_within(err, "AMD");
	cu_result r = opened.driver.init(0);
	if (r == CU_OK)
		r = opened.hip.runtime_version(&opened.hip.version);
	if (r != CU_OK)
		rc = fail(err, r == CU_NO_DEVICE ? IPCC_NOT_FOUND : IPCC_FAILED, "the AMD driver cannot be used: %s",
			  opened.hip.runtime.error_text(r));
	if (rc == 0)
		rc = runtime_fill(&opened.driver, &hip.runtime, err);
	if (rc != 0) {
		library_close(library);
		return rc;
	}
	hip = opened.hip;
	opened.driver.import_fd = import_fd;
	*driver = opened.driver;
	return 0;
}

static cu_result hip_identify(const struct driver *driver, cu_device device, char name[DEVICE_NAME_BYTES])
{
	(void)driver;
	return runtime_identify(&hip.runtime, "HIP-", device, name);
}

const struct vendor vendor_hip = {
	.kind = "hip",
	.prefix = "HIP-",
	.visible = "HIP_VISIBLE_DEVICES",
	.load = hip_load,
	.identify = hip_identify,
	.legacy_bytes = CU_IPC_BYTES,
	.legacy_get = legacy_get,
	.legacy_open = legacy_open,
};
