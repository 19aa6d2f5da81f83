/*
 * What is used of the CUDA driver's binary interface, in own declarations: the project builds without a toolkit, and a
 * driver is only looked for at run time. tests/abi/cuda.c compares every line with the real cuda.h where it is installed.
 *
 * HIP and MACA have the same shapes with other names, so this is also the shape of `struct driver`, which all GPU code
 * calls through.
 */
#ifndef IPCC_DEVICE_CUDA_ABI_H
#define IPCC_DEVICE_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

/* The same numbers with all three vendors. */
enum {
	CU_OK = 0,
	CU_INVALID_VALUE = 1,
	CU_OUT_OF_MEMORY = 2,
	CU_NOT_INITIALIZED = 3,
	CU_NO_DEVICE = 100,
	CU_INVALID_DEVICE = 101,
	CU_INVALID_CONTEXT = 201,
	CU_PEER_ACCESS_UNSUPPORTED = 217,
	CU_INVALID_HANDLE = 400,
	CU_NOT_READY = 600,
	CU_ILLEGAL_ADDRESS = 700,
	CU_HOST_PINNED = 712, /* already */
	CU_HOST_NOT_PINNED = 713,
	CU_NOT_PERMITTED = 800,
	CU_NOT_SUPPORTED = 801,
	CU_UNKNOWN = 999,
};

enum {
	CU_LOCATION_DEVICE = 1,
	CU_LOCATION_UNSEEN = -2, /* an id: memory of a GPU that this process cannot see; measured, not documented */
	CU_ALLOCATION_PINNED = 1,
	CU_HANDLE_POSIX_FD = 1,
	CU_ACCESS_READ = 1,
	CU_ACCESS_READWRITE = 3,
	CU_GRANULARITY_MINIMUM = 0,
	CU_STREAM_NOT_BLOCKING = 1,
	CU_HOST_PORTABLE = 1,
	CU_IPC_LAZY_PEER = 1,
	CU_ATTRIBUTE_VMM = 102,
	CU_ATTRIBUTE_POSIX_FD = 103,
};

struct cu_uuid {
	char bytes[16];
};
struct cu_location {
	int type;
	int id;
};
struct cu_allocation {
	int type;
	int handle_types;
	struct cu_location location;
	void *win32;
	unsigned char flags[8];
};
struct cu_access {
	struct cu_location location;
	int flags;
};
#define CU_IPC_BYTES 64
struct cu_ipc_handle {
	char bytes[CU_IPC_BYTES];
};

/* A function's result and parameters by names that the comparison defines as the real types. */
#ifndef CU_TYPES
#define CU_TYPES
typedef int cu_result;
typedef int cu_device;
typedef int cu_attribute;
typedef int cu_handle_type;
typedef int cu_granularity;
typedef unsigned long long cu_pointer;
typedef unsigned long long cu_memory;
typedef struct cu_context_state *cu_context;
typedef struct cu_stream_state *cu_stream;
typedef struct cu_uuid cu_uuid;
typedef struct cu_allocation cu_allocation;
typedef struct cu_access cu_access;
typedef struct cu_ipc_handle cu_ipc_handle;
#endif

/* slot, name in the library, parameters */
#define CUDA_FUNCTIONS(X)                                                                                              \
	X(init, cuInit, (unsigned flags))                                                                              \
	X(version, cuDriverGetVersion, (int *version))                                                                 \
	X(error_name, cuGetErrorName, (cu_result result, const char **name))                                           \
	X(device_count, cuDeviceGetCount, (int *count))                                                                \
	X(device_get, cuDeviceGet, (cu_device * device, int ordinal))                                                  \
	X(device_name, cuDeviceGetName, (char *name, int bytes, cu_device device))                                     \
	X(device_uuid, cuDeviceGetUuid_v2, (cu_uuid * uuid, cu_device device))                                         \
	X(device_attribute, cuDeviceGetAttribute, (int *value, cu_attribute attribute, cu_device device))              \
	X(device_can_access, cuDeviceCanAccessPeer, (int *can, cu_device device, cu_device peer))                      \
	X(context_retain, cuDevicePrimaryCtxRetain, (cu_context * context, cu_device device))                          \
	X(context_release, cuDevicePrimaryCtxRelease_v2, (cu_device device))                                           \
	X(context_push, cuCtxPushCurrent_v2, (cu_context context))                                                     \
	X(context_pop, cuCtxPopCurrent_v2, (cu_context * context))                                                     \
	X(memory_info, cuMemGetInfo_v2, (size_t * free, size_t * total))                                               \
	X(granularity, cuMemGetAllocationGranularity,                                                                  \
	  (size_t * bytes, const cu_allocation *allocation, cu_granularity which))                                     \
	X(create, cuMemCreate,                                                                                         \
	  (cu_memory * memory, size_t bytes, const cu_allocation *allocation, unsigned long long flags))               \
	X(release, cuMemRelease, (cu_memory memory))                                                                   \
	X(export_fd, cuMemExportToShareableHandle,                                                                     \
	  (void *fd, cu_memory memory, cu_handle_type type, unsigned long long flags))                                 \
	X(import_fd, cuMemImportFromShareableHandle, (cu_memory * memory, void *fd, cu_handle_type type))              \
	X(properties, cuMemGetAllocationPropertiesFromHandle, (cu_allocation * allocation, cu_memory memory))          \
	X(reserve, cuMemAddressReserve,                                                                                \
	  (cu_pointer * address, size_t bytes, size_t alignment, cu_pointer wanted, unsigned long long flags))         \
	X(unreserve, cuMemAddressFree, (cu_pointer address, size_t bytes))                                             \
	X(map, cuMemMap,                                                                                               \
	  (cu_pointer address, size_t bytes, size_t offset, cu_memory memory, unsigned long long flags))               \
	X(unmap, cuMemUnmap, (cu_pointer address, size_t bytes))                                                       \
	X(set_access, cuMemSetAccess, (cu_pointer address, size_t bytes, const cu_access *access, size_t count))       \
	X(fill, cuMemsetD8Async, (cu_pointer address, unsigned char byte, size_t bytes, cu_stream stream))             \
	X(upload, cuMemcpyHtoDAsync_v2, (cu_pointer to, const void *from, size_t bytes, cu_stream stream))             \
	X(download, cuMemcpyDtoHAsync_v2, (void *to, cu_pointer from, size_t bytes, cu_stream stream))                 \
	X(copy, cuMemcpyDtoDAsync_v2, (cu_pointer to, cu_pointer from, size_t bytes, cu_stream stream))                \
	X(stream_create, cuStreamCreate, (cu_stream * stream, unsigned flags))                                         \
	X(stream_destroy, cuStreamDestroy_v2, (cu_stream stream))                                                      \
	X(stream_wait, cuStreamSynchronize, (cu_stream stream))                                                        \
	X(host_allocate, cuMemHostAlloc, (void **address, size_t bytes, unsigned flags))                               \
	X(host_free, cuMemFreeHost, (void *address))                                                                   \
	X(host_pin, cuMemHostRegister_v2, (void *address, size_t bytes, unsigned flags))                               \
	X(host_unpin, cuMemHostUnregister, (void *address))                                                            \
	X(allocate, cuMemAlloc_v2, (cu_pointer * address, size_t bytes))                                               \
	X(free, cuMemFree_v2, (cu_pointer address))                                                                    \
	X(address_range, cuMemGetAddressRange_v2, (cu_pointer * base, size_t * bytes, cu_pointer address))             \
	X(ipc_get, cuIpcGetMemHandle, (cu_ipc_handle * handle, cu_pointer address))                                    \
	X(ipc_open, cuIpcOpenMemHandle_v2, (cu_pointer * address, cu_ipc_handle handle, unsigned flags))               \
	X(ipc_close, cuIpcCloseMemHandle, (cu_pointer address))

/* One vendor's driver, opened: its functions in CUDA's shapes. */
struct driver {
#define CUDA_SLOT(slot, name, parameters) cu_result(*slot) parameters;
	CUDA_FUNCTIONS(CUDA_SLOT)
#undef CUDA_SLOT
};

#endif
