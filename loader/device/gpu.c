/* See gpu.h. */
#include "loader/device/gpu.h"

#include "loader/device/backends.h"
#include "loader/device/stage.h"
#include "manifest/bytes.h"
#include "manifest/fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is loaded of one vendor. */
static struct loaded {
	const struct vendor *vendor;
	bool ready;
	struct driver driver;
	uint32_t count;
	struct gpu gpus[GPU_MAX];
} all[] = {{.vendor = &vendor_cuda}, {.vendor = &vendor_hip}, {.vendor = &vendor_maca}};

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;

static const char *error_name(const struct driver *driver, cu_result result)
{
	const char *name = NULL;
	return driver->error_name(result, &name) == CU_OK && name != NULL ? name : "an unknown error";
}

int gpu_fail(const struct gpu *gpu, cu_result result, struct ipcc_error *err, const char *format, ...)
{
	char message[512];
	va_list list;
	va_start(list, format);
	vsnprintf(message, sizeof(message), format, list);
	va_end(list);
	return fail(err, result == CU_OUT_OF_MEMORY ? IPCC_NO_MEMORY : IPCC_FAILED, "%s: %s: %s (%d)", gpu->name,
		    message, error_name(gpu->driver, result), result);
}

static int describe(struct loaded *loaded, int ordinal, struct ipcc_error *err)
{
	struct gpu *gpu = &loaded->gpus[ordinal];
	const struct driver *driver = &loaded->driver;
	*gpu = (struct gpu){.vendor = loaded->vendor, .driver = driver, .ordinal = ordinal};
	snprintf(gpu->name, sizeof(gpu->name), "%s:%d", loaded->vendor->kind, ordinal);
	cu_result r = driver->device_get(&gpu->device, ordinal);
	if (r == CU_OK)
		r = driver->device_name(gpu->model, sizeof(gpu->model), gpu->device);
	if (r == CU_OK)
		r = loaded->vendor->identify(driver, gpu->device, gpu->name);
	if (r != CU_OK)
		return gpu_fail(gpu, r, err, "cannot be identified");
	pthread_mutex_init(&gpu->lock, NULL);
	return 0;
}

static int load(struct loaded *loaded, struct ipcc_error *err)
{
	int count = 0;
	if (loaded->driver.device_count == NULL) {
		int rc = loaded->vendor->load(&loaded->driver, err);
		if (rc != 0)
			return rc;
	}
	cu_result r = loaded->driver.device_count(&count);
	if (r != CU_OK)
		return fail(err, IPCC_FAILED, "%s: counting devices: %s", loaded->vendor->kind,
			    error_name(&loaded->driver, r));
	if (count == 0)
		return fail(err, IPCC_NOT_FOUND, "the driver is there, but this process sees no GPU; see %s",
			    loaded->vendor->visible);
	for (int i = 0; i < count && i < GPU_MAX; i++) {
		int rc = describe(loaded, i, err);
		if (rc != 0)
			return rc;
	}
	loaded->count = count < GPU_MAX ? (uint32_t)count : GPU_MAX;
	loaded->ready = true;
	return 0;
}

int gpu_all(const struct vendor *vendor, struct gpu **gpus, uint32_t *count, struct ipcc_error *err)
{
	struct loaded *loaded = all;
	while (loaded->vendor != vendor)
		loaded++;
	pthread_mutex_lock(&load_lock);
	int rc = loaded->ready ? 0 : load(loaded, err);
	pthread_mutex_unlock(&load_lock);
	if (rc != 0)
		return rc;
	*gpus = loaded->gpus;
	*count = loaded->count;
	return 0;
}

const struct vendor *gpu_vendor(const char *device)
{
	for (size_t i = 0; i < array_length(all); i++)
		if (strncmp(device, all[i].vendor->prefix, strlen(all[i].vendor->prefix)) == 0)
			return all[i].vendor;
	return NULL;
}

static int not_seen(const struct vendor *vendor, const char *device, const struct gpu *gpus, uint32_t count,
		    struct ipcc_error *err)
{
	char seen[512] = "";
	size_t length = 0;
	for (uint32_t i = 0; i < count && length < sizeof(seen) - DEVICE_NAME_BYTES; i++)
		length += (size_t)snprintf(seen + length, sizeof(seen) - length, "%s%s", i == 0 ? "" : ", ",
					   gpus[i].name);
	const char *hidden = getenv(vendor->visible);
	if (hidden == NULL)
		return fail(err, IPCC_NOT_FOUND, "%s is no GPU that this process can see: it sees %s", device, seen);
	return fail(err, IPCC_NOT_FOUND, "%s is no GPU that this process can see: with %s=%.100s it sees %s", device,
		    vendor->visible, hidden, seen);
}

int gpu_find(const char *device, struct gpu **gpu, struct ipcc_error *err)
{
	const struct vendor *vendor = gpu_vendor(device);
	struct gpu *gpus;
	uint32_t count;
	if (vendor == NULL)
		return fail(err, IPCC_NOT_FOUND, "%.80s is not the name of a GPU", device);
	int rc = gpu_all(vendor, &gpus, &count, err);
	if (rc != 0)
		return fail_within(err, "%.80s", device);
	for (uint32_t i = 0; i < count; i++) {
		if (strcmp(gpus[i].name, device) == 0) {
			*gpu = &gpus[i];
			return 0;
		}
	}
	return not_seen(vendor, device, gpus, count, err);
}

int gpu_open(struct gpu *gpu, struct ipcc_error *err)
{
	pthread_mutex_lock(&gpu->lock);
	cu_result r = gpu->users > 0 ? CU_OK : gpu->driver->context_retain(&gpu->context, gpu->device);
	if (r == CU_OK)
		gpu->users++;
	pthread_mutex_unlock(&gpu->lock);
	return r == CU_OK ? 0 : gpu_fail(gpu, r, err, "no context (cuDevicePrimaryCtxRetain)");
}

void gpu_close(struct gpu *gpu)
{
	pthread_mutex_lock(&gpu->lock);
	if (--gpu->users == 0) {
		struct stage *stage = gpu->stage;
		gpu->stage = NULL;
		if (stage != NULL) {
			bool entered = gpu_enter_anyway(gpu);
			stage_free(stage);
			gpu_leave_if(gpu, entered);
		}
		gpu->driver->context_release(gpu->device);
		gpu->context = NULL;
	}
	pthread_mutex_unlock(&gpu->lock);
}

int gpu_enter(struct gpu *gpu, struct ipcc_error *err)
{
	cu_result r = gpu->driver->context_push(gpu->context);
	return r == CU_OK ? 0 : gpu_fail(gpu, r, err, "its context cannot be used (cuCtxPushCurrent)");
}

void gpu_leave(struct gpu *gpu)
{
	cu_context left;
	gpu->driver->context_pop(&left);
}

bool gpu_enter_anyway(struct gpu *gpu)
{
	return gpu->driver->context_push(gpu->context) == CU_OK;
}

void gpu_leave_if(struct gpu *gpu, bool entered)
{
	if (entered)
		gpu_leave(gpu);
}

int gpu_begin(const char *device, struct gpu **gpu, struct ipcc_error *err)
{
	struct gpu *found;
	int rc = gpu_find(device, &found, err);
	if (rc == 0)
		rc = gpu_open(found, err);
	if (rc != 0)
		return rc;
	rc = gpu_enter(found, err);
	if (rc != 0)
		gpu_close(found);
	else
		*gpu = found;
	return rc;
}

void gpu_end(struct gpu *gpu)
{
	gpu_leave(gpu);
	gpu_close(gpu);
}

struct cu_allocation gpu_allocation(const struct gpu *gpu)
{
	return (struct cu_allocation){
		.type = CU_ALLOCATION_PINNED,
		.handle_types = CU_HANDLE_POSIX_FD,
		.location = {CU_LOCATION_DEVICE, gpu->device},
	};
}

int gpu_granularity(const struct gpu *gpu, uint64_t *bytes, struct ipcc_error *err)
{
	struct cu_allocation allocation = gpu_allocation(gpu);
	size_t found = 0;
	cu_result r = gpu->driver->granularity(&found, &allocation, CU_GRANULARITY_MINIMUM);
	if (r != CU_OK)
		return gpu_fail(gpu, r, err, "memory that can be shared as file descriptors is not to be had");
	if (found == 0 || (found & (found - 1)) != 0)
		return fail(err, IPCC_FAILED, "%s: the driver names a granularity of %zu bytes", gpu->name, found);
	*bytes = found;
	return 0;
}
