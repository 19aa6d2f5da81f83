/* The stub of libamdhip64.so. FAKE_HIP_VERSION (default 60300000) decides how an fd is imported, as with ROCm. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fake-cuda/runtime.h"

#define SAME(hip, cuda, parameters, arguments)                                                                         \
	API cu_result hip parameters;                                                                                  \
	API cu_result hip parameters                                                                                   \
	{                                                                                                              \
		return cuda arguments;                                                                                 \
	}
SAME(hipInit, cuInit, (unsigned flags), (flags))
SAME(hipDriverGetVersion, cuDriverGetVersion, (int *version), (version))
SAME(hipGetDeviceCount, cuDeviceGetCount, (int *count), (count))
SAME(hipDeviceGetName, cuDeviceGetName, (char *name, int bytes, int device), (name, bytes, device))
SAME(hipDeviceCanAccessPeer, cuDeviceCanAccessPeer, (int *can, int device, int peer), (can, device, peer))
SAME(hipMemGetInfo, cuMemGetInfo_v2, (size_t * f, size_t *t), (f, t))
SAME(hipMemGetAllocationGranularity, cuMemGetAllocationGranularity, (size_t * b, const cu_allocation *a, int w),
     (b, a, w))
SAME(hipMemCreate, cuMemCreate, (cu_memory * m, size_t b, const cu_allocation *a, unsigned long long f), (m, b, a, f))
SAME(hipMemRelease, cuMemRelease, (cu_memory m), (m))
SAME(hipMemExportToShareableHandle, cuMemExportToShareableHandle, (void *fd, cu_memory m, int t, unsigned long long f),
     (fd, m, t, f))
SAME(hipMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, (cu_allocation * a, cu_memory m),
     (a, m))
SAME(hipMemAddressReserve, cuMemAddressReserve,
     (cu_pointer * p, size_t b, size_t a, cu_pointer w, unsigned long long f), (p, b, a, w, f))
SAME(hipMemAddressFree, cuMemAddressFree, (cu_pointer p, size_t b), (p, b))
SAME(hipMemMap, cuMemMap, (cu_pointer p, size_t b, size_t o, cu_memory m, unsigned long long f), (p, b, o, m, f))
SAME(hipMemUnmap, cuMemUnmap, (cu_pointer p, size_t b), (p, b))
SAME(hipMemSetAccess, cuMemSetAccess, (cu_pointer p, size_t b, const cu_access *a, size_t c), (p, b, a, c))
SAME(hipMemsetD8Async, cuMemsetD8Async, (cu_pointer p, unsigned char v, size_t b, cu_stream s), (p, v, b, s))
SAME(hipMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (cu_pointer t, const void *f, size_t b, cu_stream s), (t, f, b, s))
SAME(hipMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *t, cu_pointer f, size_t b, cu_stream s), (t, f, b, s))
SAME(hipMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (cu_pointer t, cu_pointer f, size_t b, cu_stream s), (t, f, b, s))
SAME(hipStreamCreateWithFlags, cuStreamCreate, (cu_stream * s, unsigned f), (s, f))
SAME(hipStreamDestroy, cuStreamDestroy_v2, (cu_stream s), (s))
SAME(hipStreamSynchronize, cuStreamSynchronize, (cu_stream s), (s))
SAME(hipHostMalloc, cuMemHostAlloc, (void **p, size_t b, unsigned f), (p, b, f))
SAME(hipHostFree, cuMemFreeHost, (void *p), (p))
SAME(hipHostRegister, cuMemHostRegister_v2, (void *p, size_t b, unsigned f), (p, b, f))
SAME(hipHostUnregister, cuMemHostUnregister, (void *p), (p))
SAME(hipMalloc, cuMemAlloc_v2, (cu_pointer * p, size_t b), (p, b))
SAME(hipFree, cuMemFree_v2, (cu_pointer p), (p))
SAME(hipIpcGetMemHandle, cuIpcGetMemHandle, (cu_ipc_handle * h, cu_pointer p), (h, p))
SAME(hipIpcOpenMemHandle, cuIpcOpenMemHandle_v2, (cu_pointer * p, cu_ipc_handle h, unsigned f), (p, h, f))
SAME(hipIpcCloseMemHandle, cuIpcCloseMemHandle, (cu_pointer p), (p))
SAME(hipSetDevice, runtime_set_device, (int device), (device))
SAME(hipGetDevice, runtime_get_device, (int *device), (device))
SAME(hipDeviceGetPCIBusId, runtime_bus_id, (char *text, int bytes, int device), (text, bytes, device))

API const char *hipGetErrorName(cu_result result);
API const char *hipGetErrorName(cu_result result)
{
	return runtime_error(result);
}

API cu_result hipMemGetAddressRange(cu_pointer *base, size_t *bytes, cu_pointer address);
API cu_result hipMemGetAddressRange(cu_pointer *base, size_t *bytes, cu_pointer address)
{
	if (base == NULL || bytes == NULL)
		abort(); /* as the real one crashes */
	return cuMemGetAddressRange_v2(base, bytes, address);
}

static int version(void)
{
	return atoi(fake_setting("FAKE_HIP_VERSION", "60300000"));
}

API cu_result hipRuntimeGetVersion(int *out);
API cu_result hipRuntimeGetVersion(int *out)
{
	*out = version();
	return CU_OK;
}

API cu_result hipMemImportFromShareableHandle(cu_memory *memory, void *fd, int type);
API cu_result hipMemImportFromShareableHandle(cu_memory *memory, void *fd, int type)
{
	if (version() < 70100000 && (uintptr_t)fd < 4096)
		return CU_INVALID_VALUE; /* the real one would read from there */
	return cuMemImportFromShareableHandle(memory, version() < 70100000 ? (void *)(intptr_t) * (int *)fd : fd, type);
}
