/*
 * Inside loader/device/ only: the way between ordinary host memory and a GPU, through a bounded pool of pinned buffers, so
 * that the caller's next read overlaps with the transfer of what it gave before.
 *
 * Uploads return when the bytes are in a buffer; an error of a transfer is kept, and told by every later call. What
 * follows on what is in a buffer already is gathered there: a transfer begins when the buffer is full, is wanted for
 * something else, or at stage_flush. All functions need the GPU's context to be current (gpu_enter) and are thread-safe.
 */
#ifndef IPCC_DEVICE_STAGE_H
#define IPCC_DEVICE_STAGE_H

#include "loader/device/gpu.h"

/* 64 MiB in all. A buffer for each thread that a load may have: with fewer, threads would take them from each other half
 * full. 2 MiB reach 50 of 55 GB/s. */
#define STAGE_SLOTS 32
#define STAGE_BYTES ((uint64_t)2 << 20)

/* The pool of an opened GPU, made when it is first needed; it goes with the last gpu_close. */
int stage_of(struct gpu *gpu, struct stage **stage, struct ipcc_error *err);
void stage_free(struct stage *stage);

int stage_upload(struct stage *stage, cu_pointer to, const void *from, uint64_t bytes, struct ipcc_error *err);
int stage_download(struct stage *stage, void *to, cu_pointer from, uint64_t bytes, struct ipcc_error *err);
/* All bytes are there when it returns. */
int stage_zero(struct stage *stage, cu_pointer to, uint64_t bytes, struct ipcc_error *err);
/* Waits for all uploads. */
int stage_flush(struct stage *stage, struct ipcc_error *err);

#endif
