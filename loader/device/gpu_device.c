/* The GPUs' entry of the device table: what needs no segment, and the table itself. */
#include "loader/device/gpu_device.h"

#include "loader/device/backends.h"
#include "loader/device/gpu.h"
#include "manifest/fail.h"

#include <inttypes.h>

int gpu_device_open(const char *device, struct ipcc_error *err)
{
	struct gpu *gpu;
	int rc = gpu_find(device, &gpu, err);
	return rc != 0 ? rc : gpu_open(gpu, err);
}

void gpu_device_close(const char *device)
{
	struct gpu *gpu;
	if (gpu_find(device, &gpu, NULL) == 0)
		gpu_close(gpu);
}

int gpu_device_memory(const char *device, struct device_memory *memory, struct ipcc_error *err)
{
	struct gpu *gpu;
	size_t free_bytes = 0, total_bytes = 0;
	int rc = gpu_begin(device, &gpu, err);
	if (rc != 0)
		return rc;
	cu_result r = gpu->driver->memory_info(&free_bytes, &total_bytes);
	gpu_end(gpu);
	if (r != CU_OK)
		return gpu_fail(gpu, r, err, "how much memory is free is unknown (cuMemGetInfo)");
	*memory = (struct device_memory){free_bytes, total_bytes};
	return 0;
}

int gpu_device_memory_check(const char *device, uint64_t bytes, struct ipcc_error *err)
{
	struct device_memory memory;
	int rc = gpu_device_memory(device, &memory, err);
	if (rc != 0 || bytes <= memory.free_bytes)
		return rc;
	return fail(
		err, IPCC_NO_MEMORY,
		"%s: %.1f MiB are needed, %.1f of %.1f MiB are free; evict a model (ipc-cache ls), end a program that "
		"uses this GPU, or load a smaller model",
		device, (double)bytes / (1 << 20), (double)memory.free_bytes / (1 << 20),
		(double)memory.total_bytes / (1 << 20));
}

static int device_granularity(const char *device, uint64_t *bytes, struct ipcc_error *err)
{
	struct gpu *gpu;
	int can = 1;
	int rc = gpu_find(device, &gpu, err);
	if (rc != 0)
		return rc;
	cu_result r =
		gpu->vendor->exports_fds == NULL ? CU_OK : gpu->vendor->exports_fds(gpu->driver, gpu->device, &can);
	if (r != CU_OK)
		return gpu_fail(gpu, r, err, "whether its memory can be shared as file descriptors is unknown");
	if (!can)
		return fail(err, IPCC_REFUSED,
			    "%s: its memory cannot be shared as file descriptors; a process can keep it instead: "
			    "ipc-cache load --keeper",
			    gpu->name);
	return gpu_granularity(gpu, bytes, err);
}

/* Pages are the driver's business. */
uint64_t gpu_device_huge_bytes(const struct device_segment *segment)
{
	(void)segment;
	return 0;
}

const struct device device_gpu = {
	.open = gpu_device_open,
	.close = gpu_device_close,
	.memory = gpu_device_memory,
	.memory_check = gpu_device_memory_check,
	.granularity = device_granularity,
	.create = gpu_segment_create,
	.clear = gpu_segment_clear,
	.write = gpu_segment_write,
	.read = gpu_segment_read,
	.huge_bytes = gpu_device_huge_bytes,
	.pull = gpu_segment_pull,
	.seal = gpu_segment_seal,
	.destroy = gpu_segment_destroy,
	.map = gpu_range_map,
	.fetch = gpu_range_fetch,
	.suspend = gpu_range_suspend,
	.resume = gpu_range_resume,
	.unmap = gpu_range_unmap,
	.window_open = gpu_window_open,
	.window_send = gpu_window_send,
	.window_wait = gpu_window_wait,
	.window_close = gpu_window_close,
};
