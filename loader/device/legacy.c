/* Legacy IPC handles in the shape that CUDA and HIP share; see vendor.h. */
#include "loader/device/vendor.h"

#include <string.h>

cu_result legacy_get(const struct driver *driver, cu_pointer address, uint8_t *handle)
{
	cu_ipc_handle got = {{0}};
	cu_result r = driver->ipc_get(&got, address);
	if (r == CU_OK)
		memcpy(handle, &got, sizeof(got));
	return r;
}

cu_result legacy_open(const struct driver *driver, const uint8_t *handle, cu_pointer *address)
{
	cu_ipc_handle given;
	memcpy(&given, handle, sizeof(given));
	return driver->ipc_open(address, given, CU_IPC_LAZY_PEER);
}
