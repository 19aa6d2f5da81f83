/* NVIDIA: the CUDA driver, libcuda.so.1. */
#include "loader/device/backends.h"
#include "manifest/bytes.h"
#include "manifest/fail.h"

#include <stdio.h>

/* cuDeviceGetUuid_v2, the youngest function that is used, came with 11.4. */
#define LEAST_VERSION 11040

#define CUDA_SYMBOL(slot, name, parameters) {offsetof(struct driver, slot), #name},
static const struct symbol symbols[] = {CUDA_FUNCTIONS(CUDA_SYMBOL)};

static int start(const struct driver *driver, struct ipcc_error *err)
{
	int version = 0;
	cu_result r = driver->version(&version);
	if (r == CU_OK && version < LEAST_VERSION)
		return fail(err, IPCC_FAILED,
			    "the NVIDIA driver is too old: it supports CUDA %d.%d, %d.%d is needed; "
			    "install driver 470 or newer",
			    version / 1000, version % 1000 / 10, LEAST_VERSION / 1000, LEAST_VERSION % 1000 / 10);
	if (r == CU_OK)
		r = driver->init(0);
	if (r == CU_OK)
		return 0;
	const char *name = "unknown";
	driver->error_name(r, &name);
	if (r == CU_NO_DEVICE)
		return fail(err, IPCC_NOT_FOUND,
			    "the NVIDIA driver is there, but this process sees no GPU (%s); see "
			    "CUDA_VISIBLE_DEVICES",
			    name);
	return fail(err, IPCC_FAILED, "the NVIDIA driver cannot be used: cuInit: %s", name);
}

static int cuda_load(struct driver *driver, struct ipcc_error *err)
{
	static const char *const names[] = {"libcuda.so.1", "libcuda.so", NULL};
	struct driver opened;
	void *library;
	int rc = library_open(names, symbols, array_length(symbols), &opened, &library, err);
	if (rc != 0)
		return fail_within(err, "NVIDIA");
	rc = start(&opened, err);
	if (rc != 0)
		library_close(library);
	else
		*driver = opened;
	return rc;
}

/* As nvidia-smi prints it. */
static cu_result cuda_identify(const struct driver *driver, cu_device device, char name[DEVICE_NAME_BYTES])
{
	struct cu_uuid uuid;
	cu_result r = driver->device_uuid(&uuid, device);
	if (r != CU_OK)
		return r;
	int length = snprintf(name, DEVICE_NAME_BYTES, "GPU-");
	for (int i = 0; i < 16; i++)
		length += snprintf(name + length, (size_t)(DEVICE_NAME_BYTES - length), "%s%02x",
				   i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (unsigned char)uuid.bytes[i]);
	return CU_OK;
}

static cu_result cuda_exports_fds(const struct driver *driver, cu_device device, int *can)
{
	int vmm = 0, fds = 0;
	cu_result r = driver->device_attribute(&vmm, CU_ATTRIBUTE_VMM, device);
	if (r == CU_OK)
		r = driver->device_attribute(&fds, CU_ATTRIBUTE_POSIX_FD, device);
	if (r == CU_OK)
		*can = vmm != 0 && fds != 0;
	return r;
}

const struct vendor vendor_cuda = {
	.kind = "cuda",
	.prefix = "GPU-",
	.visible = "CUDA_VISIBLE_DEVICES",
	.load = cuda_load,
	.identify = cuda_identify,
	.exports_fds = cuda_exports_fds,
	.legacy_bytes = CU_IPC_BYTES,
	.legacy_get = legacy_get,
	.legacy_open = legacy_open,
};
