/* Compiled, never run: loader/device/cuda_abi.h says the same as the real cuda.h. */
#include <cuda.h>

typedef CUresult cu_result;
typedef CUdevice cu_device;
typedef CUdevice_attribute cu_attribute;
typedef CUmemAllocationHandleType cu_handle_type;
typedef CUmemAllocationGranularity_flags cu_granularity;
typedef CUdeviceptr cu_pointer;
typedef CUmemGenericAllocationHandle cu_memory;
typedef CUcontext cu_context;
typedef CUstream cu_stream;
typedef CUuuid cu_uuid;
typedef CUmemAllocationProp cu_allocation;
typedef CUmemAccessDesc cu_access;
typedef CUipcMemHandle cu_ipc_handle;
#define CU_TYPES
#include "loader/device/cuda_abi.h"

/* Every function has these parameters. */
#define SAME_FUNCTION(slot, name, parameters)                                                                          \
	_Static_assert(__builtin_types_compatible_p(__typeof__(&name), CUresult(*) parameters), #name);
CUDA_FUNCTIONS(SAME_FUNCTION)

/* What stands for a real type has its size and layout. */
#define SAME_SIZE(ours, real) _Static_assert(sizeof(ours) == sizeof(real), #real)
#define SAME_PLACE(ours, our_field, real, field)                                                                       \
	_Static_assert(offsetof(ours, our_field) == offsetof(real, field), #real "." #field)
SAME_SIZE(int, CUresult);
SAME_SIZE(int, CUdevice);
SAME_SIZE(int, CUdevice_attribute);
SAME_SIZE(int, CUmemAllocationHandleType);
SAME_SIZE(int, CUmemAllocationGranularity_flags);
SAME_SIZE(unsigned long long, CUdeviceptr);
SAME_SIZE(unsigned long long, CUmemGenericAllocationHandle);
SAME_SIZE(struct cu_uuid, CUuuid);
SAME_SIZE(struct cu_location, CUmemLocation);
SAME_SIZE(struct cu_allocation, CUmemAllocationProp);
SAME_SIZE(struct cu_access, CUmemAccessDesc);
SAME_SIZE(struct cu_ipc_handle, CUipcMemHandle);
SAME_PLACE(struct cu_location, type, CUmemLocation, type);
SAME_PLACE(struct cu_location, id, CUmemLocation, id);
SAME_PLACE(struct cu_allocation, type, CUmemAllocationProp, type);
SAME_PLACE(struct cu_allocation, handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_PLACE(struct cu_allocation, location, CUmemAllocationProp, location);
SAME_PLACE(struct cu_allocation, win32, CUmemAllocationProp, win32HandleMetaData);
SAME_PLACE(struct cu_allocation, flags, CUmemAllocationProp, allocFlags);
SAME_PLACE(struct cu_access, location, CUmemAccessDesc, location);
SAME_PLACE(struct cu_access, flags, CUmemAccessDesc, flags);

#define SAME_NUMBER(ours, real) _Static_assert((int)(ours) == (int)(real), #real)
SAME_NUMBER(CU_OK, CUDA_SUCCESS);
SAME_NUMBER(CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME_NUMBER(CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME_NUMBER(CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME_NUMBER(CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME_NUMBER(CU_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME_NUMBER(CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME_NUMBER(CU_PEER_ACCESS_UNSUPPORTED, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
SAME_NUMBER(CU_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME_NUMBER(CU_NOT_READY, CUDA_ERROR_NOT_READY);
SAME_NUMBER(CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME_NUMBER(CU_HOST_PINNED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME_NUMBER(CU_HOST_NOT_PINNED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME_NUMBER(CU_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
SAME_NUMBER(CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME_NUMBER(CU_UNKNOWN, CUDA_ERROR_UNKNOWN);
SAME_NUMBER(CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME_NUMBER(CU_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME_NUMBER(CU_HANDLE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME_NUMBER(CU_ACCESS_READ, CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME_NUMBER(CU_ACCESS_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME_NUMBER(CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME_NUMBER(CU_STREAM_NOT_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME_NUMBER(CU_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME_NUMBER(CU_HOST_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME_NUMBER(CU_IPC_BYTES, CU_IPC_HANDLE_SIZE);
SAME_NUMBER(CU_IPC_LAZY_PEER, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
SAME_NUMBER(CU_ATTRIBUTE_VMM, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME_NUMBER(CU_ATTRIBUTE_POSIX_FD, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
