/* See runtime.h. A process uses one such runtime: a machine with two vendors' GPUs and neither of them NVIDIA's is unheard of. */
#include "loader/device/runtime.h"

#include "manifest/fail.h"

#include <stdio.h>

#define MAX_DEPTH 16

static const struct runtime *used;
static __thread int saved[MAX_DEPTH], depth;

static cu_result device_get(cu_device *device, int ordinal)
{
	*device = ordinal;
	return CU_OK;
}

static cu_context context_of(cu_device device)
{
	return (cu_context)(uintptr_t)(device + 1);
}

static cu_result context_retain(cu_context *context, cu_device device)
{
	*context = context_of(device);
	return CU_OK;
}

static cu_result context_release(cu_device device)
{
	(void)device;
	return CU_OK;
}

static cu_result context_push(cu_context context)
{
	int before;
	if (depth == MAX_DEPTH)
		return CU_INVALID_CONTEXT;
	cu_result r = used->get_device(&before);
	if (r == CU_OK)
		r = used->set_device((int)(uintptr_t)context - 1);
	if (r == CU_OK)
		saved[depth++] = before;
	return r;
}

static cu_result context_pop(cu_context *context)
{
	int now;
	if (depth == 0)
		return CU_INVALID_CONTEXT;
	cu_result r = used->get_device(&now);
	if (r == CU_OK)
		*context = context_of(now);
	cu_result restored = used->set_device(saved[--depth]);
	return r != CU_OK ? r : restored;
}

static cu_result error_name(cu_result result, const char **name)
{
	*name = used->error_text(result);
	return CU_OK;
}

int runtime_fill(struct driver *driver, const struct runtime *runtime, struct ipcc_error *err)
{
	if (used != NULL && used != runtime)
		return fail(err, IPCC_REFUSED, "this process uses another vendor's GPUs already");
	used = runtime;
	driver->device_get = device_get;
	driver->context_retain = context_retain;
	driver->context_release = context_release;
	driver->context_push = context_push;
	driver->context_pop = context_pop;
	driver->error_name = error_name;
	return 0;
}

cu_result runtime_identify(const struct runtime *runtime, const char *prefix, cu_device device,
			   char name[DEVICE_NAME_BYTES])
{
	char bus_id[32];
	cu_result r = runtime->bus_id(bus_id, sizeof(bus_id), device);
	if (r == CU_OK)
		snprintf(name, DEVICE_NAME_BYTES, "%s%s", prefix, bus_id);
	return r;
}
