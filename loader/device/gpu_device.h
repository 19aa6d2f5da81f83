/* Inside loader/device/ only: the GPUs' entry of the device table, in its parts. See device.h for what each does. */
#ifndef IPCC_DEVICE_GPU_DEVICE_H
#define IPCC_DEVICE_GPU_DEVICE_H

#include "loader/device/device.h"

struct gpu;

/* gpu_device.c */
int gpu_device_open(const char *device, struct ipcc_error *err);
void gpu_device_close(const char *device);
int gpu_device_memory(const char *device, struct device_memory *memory, struct ipcc_error *err);
int gpu_device_memory_check(const char *device, uint64_t bytes, struct ipcc_error *err);
uint64_t gpu_device_huge_bytes(const struct device_segment *segment);

/* gpu_segment.c, and for gpu_kept.c the frame of create: a segment of an opened GPU, whose memory `allocate` makes with
 * the GPU's context current; it may read made->bytes, which it has to check, and fills in the rest but for `state`. */
typedef int gpu_allocate(struct gpu *gpu, struct device_segment *made, struct ipcc_error *err);
int gpu_segment_make(const char *device, uint64_t bytes, gpu_allocate *allocate, struct device_segment *segment,
		     struct ipcc_error *err);
/* IPCC_USAGE unless `bytes` is a multiple of `granularity`, and not 0. */
int gpu_check_size(const struct gpu *gpu, uint64_t bytes, uint64_t granularity, struct ipcc_error *err);
int gpu_segment_create(const char *device, const char *name, uint64_t bytes, struct device_segment *segment,
		       struct ipcc_error *err);
int gpu_segment_write(struct device_segment *segment, uint64_t offset, const void *from, uint64_t bytes,
		      struct ipcc_error *err);
int gpu_segment_read(const struct device_segment *segment, uint64_t offset, void *to, uint64_t bytes,
		     struct ipcc_error *err);
int gpu_segment_clear(struct device_segment *segment, struct ipcc_error *err);
int gpu_segment_seal(struct device_segment *segment, struct ipcc_error *err);
void gpu_segment_destroy(struct device_segment *segment);

/* gpu_pull.c */
int gpu_segment_pull(struct device_segment *const *segments, const struct device_range *from, struct ipcc_error *err);

/* gpu_window.c */
int gpu_window_open(const char *device, void *address, uint64_t bytes, struct device_window **window,
		    struct ipcc_error *err);
int gpu_window_send(struct device_window *window, struct device_segment *segment, uint64_t offset, const void *from,
		    uint64_t bytes, struct ipcc_error *err);
int gpu_window_wait(struct device_window *window, struct ipcc_error *err);
void gpu_window_close(struct device_window *window);

/* gpu_range.c; and for gpu_kept.c: copies from a range that `gpu`, which is opened, has mapped. */
int gpu_fetch(struct gpu *gpu, const struct device_range *range, uint32_t segment, uint64_t offset, void *to,
	      uint64_t bytes, struct ipcc_error *err);
int gpu_range_map(const struct device_request *request, struct device_range **range, struct ipcc_error *err);
int gpu_range_fetch(const struct device_range *range, uint32_t segment, uint64_t offset, void *to, uint64_t bytes,
		    struct ipcc_error *err);
int gpu_range_suspend(struct device_range *range, struct ipcc_error *err);
int gpu_range_resume(struct device_range *range, const int *fds, struct ipcc_error *err);
void gpu_range_unmap(struct device_range *range);

#endif
