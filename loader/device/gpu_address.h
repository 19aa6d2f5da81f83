/* Inside loader/device/ only: GPU memory at GPU addresses: reserved ranges in which several memories lie side by side. */
#ifndef IPCC_DEVICE_GPU_ADDRESS_H
#define IPCC_DEVICE_GPU_ADDRESS_H

#include "loader/device/gpu.h"

struct gpu_address {
	cu_pointer base; /* 0: nothing is reserved */
	uint64_t bytes;
};

/* Reserves addresses for `bytes` bytes. */
int gpu_reserve(const struct gpu *gpu, uint64_t bytes, struct gpu_address *address, struct ipcc_error *err);
void gpu_unreserve(const struct gpu *gpu, struct gpu_address *address);

/* Maps memories of bytes[i] bytes side by side from `base` on, accessible to `gpu`: all or none. The memories can be
 * released afterwards. */
int gpu_map(const struct gpu *gpu, cu_pointer base, const cu_memory *memories, const uint64_t *bytes, uint32_t count,
	    int access, struct ipcc_error *err);
/* Undoes gpu_map. Returns the first error, and goes on. */
cu_result gpu_unmap(const struct gpu *gpu, cu_pointer base, const uint64_t *bytes, uint32_t count);

/* Imports an fd, and checks that it is memory of `owner`. Release it with driver->release. `i` is for messages. */
int gpu_import(const struct gpu *owner, int fd, uint32_t i, cu_memory *memory, struct ipcc_error *err);

#endif
