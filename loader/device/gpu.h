/*
 * Inside loader/device/ only: the GPUs that this process sees, their contexts, and how errors of a driver are told.
 *
 * Invariants: a vendor's driver is loaded once and stays; a GPU's primary context is retained while `users` is not 0; the
 * staging buffers live and die with it.
 */
#ifndef IPCC_DEVICE_GPU_H
#define IPCC_DEVICE_GPU_H

#include "loader/device/vendor.h"

#include <pthread.h>

#define GPU_MAX 64 /* of one vendor */

struct stage;

struct gpu {
	const struct vendor *vendor;
	const struct driver *driver;
	int ordinal;
	cu_device device;
	char name[DEVICE_NAME_BYTES];
	char model[64];

	pthread_mutex_t lock; /* guards what follows */
	unsigned users;
	cu_context context;
	struct stage *stage;
};

/* All GPUs of a vendor; the array lives as long as the process. An error says why there are none. */
int gpu_all(const struct vendor *vendor, struct gpu **gpus, uint32_t *count, struct ipcc_error *err);

/* The vendor whose devices are named like this one, or NULL. */
const struct vendor *gpu_vendor(const char *device);
/* The GPU of that name. IPCC_NOT_FOUND names it and those that this process sees. */
int gpu_find(const char *device, struct gpu **gpu, struct ipcc_error *err);

/* Retains the primary context until as many gpu_close. */
int gpu_open(struct gpu *gpu, struct ipcc_error *err);
void gpu_close(struct gpu *gpu);

/* Makes the context of an opened GPU current in this thread, on top of what was current, until gpu_leave. */
int gpu_enter(struct gpu *gpu, struct ipcc_error *err);
void gpu_leave(struct gpu *gpu);
/* The same to let go of something, which is tried with or without a context: `entered` says whether there is one. */
bool gpu_enter_anyway(struct gpu *gpu);
void gpu_leave_if(struct gpu *gpu, bool entered);

/* Finds, opens and enters; gpu_leave and gpu_close end it. */
int gpu_begin(const char *device, struct gpu **gpu, struct ipcc_error *err);
void gpu_end(struct gpu *gpu);

/* "MESSAGE: CUDA_ERROR_..."; IPCC_NO_MEMORY where the driver says so, IPCC_FAILED otherwise. */
int gpu_fail(const struct gpu *gpu, cu_result result, struct ipcc_error *err, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* Memory of this GPU that can be exported, as the driver describes it. */
struct cu_allocation gpu_allocation(const struct gpu *gpu);
int gpu_granularity(const struct gpu *gpu, uint64_t *bytes, struct ipcc_error *err);

#endif
