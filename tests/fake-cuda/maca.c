/*
 * The stub of libmcruntime.so. Without MACA_MPS_MODE=1 a call that touches a device waits for ever, as the real one may; so
 * does closing a legacy handle. FAKE_MACA_NO_LAZY=1: the flag for lazy access to peers is not known.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fake-cuda/runtime.h"

#define SAME(maca, cuda, parameters, arguments)                                                                        \
	API cu_result maca parameters;                                                                                 \
	API cu_result maca parameters                                                                                  \
	{                                                                                                              \
		return cuda arguments;                                                                                 \
	}
SAME(mcDeviceCanAccessPeer, cuDeviceCanAccessPeer, (int *can, int device, int peer), (can, device, peer))
SAME(mcMemGetInfo, cuMemGetInfo_v2, (size_t * f, size_t *t), (f, t))
SAME(mcMemGetAllocationGranularity, cuMemGetAllocationGranularity, (size_t * b, const cu_allocation *a, int w),
     (b, a, w))
SAME(mcMemCreate, cuMemCreate, (cu_memory * m, size_t b, const cu_allocation *a, unsigned long long f), (m, b, a, f))
SAME(mcMemRelease, cuMemRelease, (cu_memory m), (m))
SAME(mcMemExportToShareableHandle, cuMemExportToShareableHandle, (void *fd, cu_memory m, int t, unsigned long long f),
     (fd, m, t, f))
SAME(mcMemImportFromShareableHandle, cuMemImportFromShareableHandle, (cu_memory * m, void *fd, int t), (m, fd, t))
SAME(mcMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, (cu_allocation * a, cu_memory m),
     (a, m))
SAME(mcMemAddressReserve, cuMemAddressReserve, (cu_pointer * p, size_t b, size_t a, cu_pointer w, unsigned long long f),
     (p, b, a, w, f))
SAME(mcMemAddressFree, cuMemAddressFree, (cu_pointer p, size_t b), (p, b))
SAME(mcMemMap, cuMemMap, (cu_pointer p, size_t b, size_t o, cu_memory m, unsigned long long f), (p, b, o, m, f))
SAME(mcMemUnmap, cuMemUnmap, (cu_pointer p, size_t b), (p, b))
SAME(mcMemSetAccess, cuMemSetAccess, (cu_pointer p, size_t b, const cu_access *a, size_t c), (p, b, a, c))
SAME(mcStreamCreateWithFlags, cuStreamCreate, (cu_stream * s, unsigned f), (s, f))
SAME(mcStreamDestroy, cuStreamDestroy_v2, (cu_stream s), (s))
SAME(mcStreamSynchronize, cuStreamSynchronize, (cu_stream s), (s))
SAME(mcFreeHost, cuMemFreeHost, (void *p), (p))
SAME(mcHostRegister, cuMemHostRegister_v2, (void *p, size_t b, unsigned f), (p, b, f))
SAME(mcHostUnregister, cuMemHostUnregister, (void *p), (p))
SAME(mcMalloc, cuMemAlloc_v2, (cu_pointer * p, size_t b), (p, b))
SAME(mcFree, cuMemFree_v2, (cu_pointer p), (p))
SAME(mcSetDevice, runtime_set_device, (int device), (device))
SAME(mcGetDevice, runtime_get_device, (int *device), (device))
SAME(mcDeviceGetPCIBusId, runtime_bus_id, (char *text, int bytes, int device), (text, bytes, device))

API const char *mcGetErrorString(cu_result result);
API const char *mcGetErrorString(cu_result result)
{
	return runtime_error(result);
}

API cu_result mcGetDeviceCount(int *count);
API cu_result mcGetDeviceCount(int *count)
{
	if (strcmp(fake_setting("MACA_MPS_MODE", ""), "1") != 0)
		pause();
	cu_result result = cuInit(0);
	return result == CU_OK ? cuDeviceGetCount(count) : result;
}

API cu_result mcMallocHost(void **address, size_t bytes, unsigned flags);
API cu_result mcMallocHost(void **address, size_t bytes, unsigned flags)
{
	return flags != 0 ? CU_INVALID_VALUE : cuMemHostAlloc(address, bytes, 0);
}

API cu_result mcMemsetAsync(void *address, int byte, size_t bytes, cu_stream stream);
API cu_result mcMemsetAsync(void *address, int byte, size_t bytes, cu_stream stream)
{
	return cuMemsetD8Async((uintptr_t)address, (unsigned char)byte, bytes, stream);
}

API cu_result mcMemcpyAsync(void *to, const void *from, size_t bytes, int kind, cu_stream stream);
API cu_result mcMemcpyAsync(void *to, const void *from, size_t bytes, int kind, cu_stream stream)
{
	switch (kind) {
	case 1:
		return cuMemcpyHtoDAsync_v2((uintptr_t)to, from, bytes, stream);
	case 2:
		return cuMemcpyDtoHAsync_v2(to, (uintptr_t)from, bytes, stream);
	case 3:
		return cuMemcpyDtoDAsync_v2((uintptr_t)to, (uintptr_t)from, bytes, stream);
	default:
		return CU_INVALID_VALUE;
	}
}

struct maca_handle {
	cu_ipc_handle cuda;
	char rest[64];
};

API cu_result mcIpcGetMemHandle(struct maca_handle *handle, cu_pointer address);
API cu_result mcIpcGetMemHandle(struct maca_handle *handle, cu_pointer address)
{
	memset(handle->rest, 0x3c, sizeof(handle->rest)); /* all 128 bytes must arrive */
	return cuIpcGetMemHandle(&handle->cuda, address);
}

API cu_result mcIpcOpenMemHandle(cu_pointer *address, struct maca_handle handle, unsigned flags);
API cu_result mcIpcOpenMemHandle(cu_pointer *address, struct maca_handle handle, unsigned flags)
{
	bool lazy = fake_setting("FAKE_MACA_NO_LAZY", NULL) == NULL;
	fake_legacy_stays = true;
	for (size_t i = 0; i < sizeof(handle.rest); i++)
		if (handle.rest[i] != 0x3c)
			return CU_INVALID_HANDLE;
	if (flags != (lazy ? CU_IPC_LAZY_PEER : 0))
		return CU_INVALID_VALUE;
	return cuIpcOpenMemHandle_v2(address, handle.cuda, CU_IPC_LAZY_PEER);
}

API cu_result mcIpcCloseMemHandle(cu_pointer address);
API cu_result mcIpcCloseMemHandle(cu_pointer address)
{
	(void)address;
	pause();
	return CU_OK;
}
