/*
 * Windows: pinned host memory, each with a stream of its own, so that what was sent from one can be waited for alone.
 *
 * Pinning is serial in the driver, whoever asks (28 ms a GiB in large pages, 63 in small ones, and 10 more to unpin, measured
 * on an H200): slower than the bus. So what is pinned is a few buffers that are used again and again, never the files.
 */
#include "loader/device/gpu_device.h"

#include "bpf/probes.h"
#include "loader/device/gpu.h"
#include "manifest/bytes.h"
#include "manifest/fail.h"

#include <inttypes.h>
#include <stdlib.h>

/* Transfers that can be on their way from one window: as many as a unit of 4 MiB has pieces of 64 KiB. */
#define SENT_MOST 64

struct device_window {
	struct gpu *gpu; /* opened until the window is closed */
	const uint8_t *address;
	uint64_t bytes;
	cu_stream stream;
	const void *sent[SENT_MOST]; /* from where: the probes' ids */
	unsigned sent_count;
};

/* With the GPU's context current. */
static int prepare(struct device_window *window, void *address, struct ipcc_error *err)
{
	const struct driver *driver = window->gpu->driver;
	cu_result r = driver->host_pin(address, window->bytes, CU_HOST_PORTABLE);
	if (r != CU_OK)
		return gpu_fail(window->gpu, r, err, "%" PRIu64 " bytes of host memory cannot be pinned",
				window->bytes);
	r = driver->stream_create(&window->stream, CU_STREAM_NOT_BLOCKING);
	if (r == CU_OK)
		return 0;
	driver->host_unpin(address);
	return gpu_fail(window->gpu, r, err, "no stream for transfers");
}

int gpu_window_open(const char *device, void *address, uint64_t bytes, struct device_window **window,
		    struct ipcc_error *err)
{
	struct device_window *made = calloc(1, sizeof(*made));
	if (made == NULL)
		return fail(err, IPCC_NO_MEMORY, "no memory for a window");
	*made = (struct device_window){.address = address, .bytes = bytes};
	int rc = gpu_begin(device, &made->gpu, err);
	if (rc == 0) {
		rc = prepare(made, address, err);
		gpu_leave(made->gpu);
		if (rc != 0)
			gpu_close(made->gpu);
	}
	if (rc != 0)
		free(made);
	else
		*window = made;
	return rc;
}

/* Waits for all that was sent. With the GPU's context current. */
static cu_result finish(struct device_window *window)
{
	cu_result r = window->gpu->driver->stream_wait(window->stream);
	for (unsigned i = 0; i < window->sent_count; i++)
		PROBE_UPLOAD_COMPLETED(window->sent[i], r);
	window->sent_count = 0;
	return r;
}

static cu_result send(struct device_window *window, cu_pointer to, const void *from, uint64_t bytes)
{
	cu_result r = window->sent_count == SENT_MOST ? finish(window) : CU_OK;
	if (r != CU_OK)
		return r;
	PROBE_UPLOAD_SUBMITTED(from, to, bytes);
	window->sent[window->sent_count++] = from;
	return window->gpu->driver->upload(to, from, bytes, window->stream);
}

int gpu_window_send(struct device_window *window, struct device_segment *segment, uint64_t offset, const void *from,
		    uint64_t bytes, struct ipcc_error *err)
{
	struct gpu *gpu = window->gpu;
	uint64_t at = (uint64_t)((const uint8_t *)from - window->address);
	if (segment->state != gpu || !range_inside(offset, bytes, segment->bytes) ||
	    !range_inside(at, bytes, window->bytes))
		return fail(err, IPCC_USAGE, "%" PRIu64 " bytes at offset %" PRIu64 " cannot be sent from there", bytes,
			    offset);
	int rc = gpu_enter(gpu, err);
	if (rc != 0)
		return rc;
	cu_result r = send(window, (cu_pointer)(uintptr_t)segment->address + offset, from, bytes);
	gpu_leave(gpu);
	return r == CU_OK ? 0 : gpu_fail(gpu, r, err, "a transfer cannot begin");
}

int gpu_window_wait(struct device_window *window, struct ipcc_error *err)
{
	int rc = gpu_enter(window->gpu, err);
	if (rc != 0)
		return rc;
	cu_result r = finish(window);
	gpu_leave(window->gpu);
	return r == CU_OK ? 0 : gpu_fail(window->gpu, r, err, "a transfer failed");
}

void gpu_window_close(struct device_window *window)
{
	if (window == NULL)
		return;
	struct gpu *gpu = window->gpu;
	bool entered = gpu_enter_anyway(gpu);
	finish(window);
	gpu->driver->stream_destroy(window->stream);
	gpu->driver->host_unpin((void *)(uintptr_t)window->address);
	gpu_leave_if(gpu, entered);
	gpu_close(gpu);
	free(window);
}
