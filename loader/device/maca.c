/*
 * MetaX: the MACA runtime, libmcruntime.so. Written from publicly visible call patterns and tested with a stub alone: no
 * such card was at hand.
 *
 * Traps: a second process on an occupied GPU blocks for ever unless MACA_MPS_MODE=1 is set in both, so without it the
 * driver is not touched; pinned memory is allocated with flags 0; copies have one function with a direction. A legacy handle
 * has 64 or 128 bytes, depending on whom one believes: 128 are handed over. Closing one can wait for ever when two processes
 * close each other's, so it is never done.
 */
#include "loader/device/backends.h"
#include "loader/device/runtime.h"
#include "manifest/bytes.h"
#include "manifest/fail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct maca_handle {
	uint8_t bytes[MANIFEST_LEGACY_HANDLE_BYTES];
};

static struct maca {
	struct runtime runtime;
	cu_result (*copy)(void *to, const void *from, size_t bytes, int kind, cu_stream stream);
	cu_result (*fill)(void *address, int byte, size_t bytes, cu_stream stream);
	cu_result (*host_allocate)(void **address, size_t bytes, unsigned flags);
	cu_result (*ipc_get)(struct maca_handle *handle, void *address);
	cu_result (*ipc_open)(void **address, struct maca_handle handle, unsigned flags);
} maca;

#define DRIVER(slot, name)                                                                                             \
	{                                                                                                              \
		offsetof(struct driver, slot), name                                                                    \
	}
#define MACA(slot, name)                                                                                               \
	{                                                                                                              \
		sizeof(struct driver) + offsetof(struct maca, slot), name                                              \
	}
static const struct symbol symbols[] = {
	DRIVER(device_count, "mcGetDeviceCount"),
	DRIVER(device_can_access, "mcDeviceCanAccessPeer"),
	DRIVER(memory_info, "mcMemGetInfo"),
	DRIVER(granularity, "mcMemGetAllocationGranularity"),
	DRIVER(create, "mcMemCreate"),
	DRIVER(release, "mcMemRelease"),
	DRIVER(export_fd, "mcMemExportToShareableHandle"),
	DRIVER(import_fd, "mcMemImportFromShareableHandle"),
	DRIVER(properties, "mcMemGetAllocationPropertiesFromHandle"),
	DRIVER(reserve, "mcMemAddressReserve"),
	DRIVER(unreserve, "mcMemAddressFree"),
	DRIVER(map, "mcMemMap"),
	DRIVER(unmap, "mcMemUnmap"),
	DRIVER(set_access, "mcMemSetAccess"),
	DRIVER(stream_create, "mcStreamCreateWithFlags"),
	DRIVER(stream_destroy, "mcStreamDestroy"),
	DRIVER(stream_wait, "mcStreamSynchronize"),
	DRIVER(host_free, "mcFreeHost"),
	DRIVER(host_pin, "mcHostRegister"),
	DRIVER(host_unpin, "mcHostUnregister"),
	MACA(runtime.set_device, "mcSetDevice"),
	MACA(runtime.get_device, "mcGetDevice"),
	MACA(runtime.bus_id, "mcDeviceGetPCIBusId"),
	MACA(runtime.error_text, "mcGetErrorString"),
	MACA(copy, "mcMemcpyAsync"),
	MACA(fill, "mcMemsetAsync"),
	DRIVER(allocate, "mcMalloc"),
	DRIVER(free, "mcFree"),
	MACA(host_allocate, "mcMallocHost"),
	MACA(ipc_get, "mcIpcGetMemHandle"),
	MACA(ipc_open, "mcIpcOpenMemHandle"),
};

static void *at(cu_pointer address)
{
	return (void *)(uintptr_t)address;
}

static cu_result upload(cu_pointer to, const void *from, size_t bytes, cu_stream stream)
{
	return maca.copy(at(to), from, bytes, RUNTIME_TO_DEVICE, stream);
}

static cu_result download(void *to, cu_pointer from, size_t bytes, cu_stream stream)
{
	return maca.copy(to, at(from), bytes, RUNTIME_FROM_DEVICE, stream);
}

static cu_result copy(cu_pointer to, cu_pointer from, size_t bytes, cu_stream stream)
{
	return maca.copy(at(to), at(from), bytes, RUNTIME_WITHIN_DEVICE, stream);
}

static cu_result fill(cu_pointer address, unsigned char byte, size_t bytes, cu_stream stream)
{
	return maca.fill(at(address), byte, bytes, stream);
}

static cu_result host_allocate(void **address, size_t bytes, unsigned flags)
{
	(void)flags;
	return maca.host_allocate(address, bytes, 0);
}

static cu_result maca_get(const struct driver *driver, cu_pointer address, uint8_t *handle)
{
	struct maca_handle got = {{0}};
	(void)driver;
	cu_result r = maca.ipc_get(&got, at(address));
	if (r == CU_OK)
		memcpy(handle, got.bytes, sizeof(got.bytes));
	return r;
}

/* The flag for peers is not known to all releases. */
static cu_result maca_open_handle(const struct driver *driver, const uint8_t *handle, cu_pointer *address)
{
	struct maca_handle given;
	void *opened = NULL;
	(void)driver;
	memcpy(given.bytes, handle, sizeof(given.bytes));
	cu_result r = maca.ipc_open(&opened, given, CU_IPC_LAZY_PEER);
	if (r == CU_INVALID_VALUE)
		r = maca.ipc_open(&opened, given, 0);
	if (r == CU_OK)
		*address = (cu_pointer)(uintptr_t)opened;
	return r;
}

static cu_result device_name(char *name, int bytes, cu_device device)
{
	(void)device;
	snprintf(name, (size_t)bytes, "MetaX GPU");
	return CU_OK;
}

static int open_library(void *table, void **library, struct ipcc_error *err)
{
	char path[512];
	const char *root = getenv("MACA_PATH");
	snprintf(path, sizeof(path), "%.400s/lib/libmcruntime.so", root != NULL ? root : "/opt/maca");
	return library_open((const char *const[]){"libmcruntime.so", path, NULL}, symbols, array_length(symbols), table,
			    library, err);
}

static int maca_load(struct driver *driver, struct ipcc_error *err)
{
	struct {
		struct driver driver;
		struct maca maca;
	} opened = {0};
	const char *shared = getenv("MACA_MPS_MODE");
	_Static_assert(offsetof(__typeof__(opened), maca) == sizeof(struct driver), "symbols[] counts on it");
	void *library;
	int rc = open_library(&opened, &library, err);
	if (rc != 0)
		return fail_within(err, "MetaX");
	if (shared == NULL || strcmp(shared, "1") != 0)
		rc = fail(err, IPCC_REFUSED,
			  "MetaX: set MACA_MPS_MODE=1 in every process that uses these GPUs: without it the "
			  "second one on a GPU waits for ever");
	if (rc == 0)
		rc = runtime_fill(&opened.driver, &maca.runtime, err);
	if (rc != 0) {
		library_close(library);
		return rc;
	}
	maca = opened.maca;
	opened.driver.upload = upload;
	opened.driver.download = download;
	opened.driver.copy = copy;
	opened.driver.fill = fill;
	opened.driver.host_allocate = host_allocate;
	opened.driver.device_name = device_name;
	*driver = opened.driver;
	return 0;
}

static cu_result maca_identify(const struct driver *driver, cu_device device, char name[DEVICE_NAME_BYTES])
{
	(void)driver;
	return runtime_identify(&maca.runtime, "MACA-", device, name);
}

const struct vendor vendor_maca = {
	.kind = "maca",
	.prefix = "MACA-",
	.visible = "MACA_VISIBLE_DEVICES",
	.load = maca_load,
	.identify = maca_identify,
	.legacy_bytes = sizeof(struct maca_handle),
	.legacy_get = maca_get,
	.legacy_open = maca_open_handle,
	.legacy_stays = true,
};
