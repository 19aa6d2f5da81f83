/* What the stubs of HIP and MACA share: a current device of each thread, on top of the fake driver's contexts. */
#ifndef FAKE_RUNTIME_H
#define FAKE_RUNTIME_H

#include "tests/fake-cuda/fake.h"

extern cu_result cuInit(unsigned flags);
extern cu_result cuDriverGetVersion(int *version);
extern cu_result cuGetErrorName(cu_result result, const char **name);
extern cu_result cuDeviceGetCount(int *count);
extern cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device);
extern cu_result cuCtxSetCurrent(cu_context context);
#define DECLARE(slot, name, parameters) extern cu_result name parameters;
CUDA_FUNCTIONS(DECLARE)

static __thread int runtime_device = -1;
/* The runtimes have no end; their contexts are nobody's leak. */
static cu_context runtime_contexts[FAKE_MAX_GPUS];

static cu_result runtime_set_device(int device)
{
	cu_result result = CU_OK;
	if (device < 0 || device >= FAKE_MAX_GPUS)
		return CU_INVALID_DEVICE;
	if (runtime_contexts[device] == NULL) {
		result = cuDevicePrimaryCtxRetain(&runtime_contexts[device], device);
		if (result == CU_OK)
			fake_live[LIVE_CONTEXTS]--;
	}
	if (result == CU_OK)
		result = cuCtxSetCurrent(runtime_contexts[device]);
	if (result == CU_OK)
		runtime_device = device;
	return result;
}

static cu_result runtime_get_device(int *device)
{
	*device = runtime_device < 0 ? 0 : runtime_device;
	return CU_OK;
}

static cu_result runtime_bus_id(char *text, int bytes, int device)
{
	cu_uuid uuid;
	cu_result result = cuDeviceGetUuid_v2(&uuid, device);
	if (result == CU_OK)
		snprintf(text, (size_t)bytes, "0000:%02x:00.0", (unsigned char)uuid.bytes[15]);
	return result;
}

static const char *runtime_error(cu_result result)
{
	const char *name = NULL;
	cuGetErrorName(result, &name);
	return name != NULL ? name : "unknown error";
}

#endif
