/*
 * The driver without the project's device table, for tests that ask what the driver itself does: libcuda.so.1 as the
 * loader finds it (the real one or tests/fake-cuda/), and the functions that only tests need.
 */
#ifndef IPCC_TESTS_GPU_RAW_H
#define IPCC_TESTS_GPU_RAW_H

#include "loader/device/cuda_abi.h"

#define RAW_EXTRA(X)                                                                                                   \
	X(context_current, cuCtxGetCurrent, (cu_context * context))                                                    \
	X(context_set, cuCtxSetCurrent, (cu_context context))                                                          \
	X(context_wait, cuCtxSynchronize, (void))                                                                      \
	X(pointer_attribute, cuPointerGetAttribute, (void *value, int attribute, cu_pointer address))                  \
	X(module_load, cuModuleLoadData, (void **module, const void *image))                                           \
	X(module_function, cuModuleGetFunction, (void **function, void *module, const char *name))                     \
	X(launch, cuLaunchKernel,                                                                                      \
	  (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,               \
	   unsigned shared, cu_stream stream, void **parameters, void **extra))

struct raw {
#define RAW_SLOT(slot, name, parameters) cu_result(*slot) parameters;
	CUDA_FUNCTIONS(RAW_SLOT) RAW_EXTRA(RAW_SLOT)
};

extern struct raw cu;

/* Loads, and calls cuInit; returns its result, or ends the process when there is no driver. */
cu_result raw_load(void);
const char *raw_error(cu_result result);
/* Ends the process with a message unless the result is CU_OK. */
void raw_must(cu_result result, const char *what);
/* The primary context of device `ordinal`, current from now on. */
void raw_context(int ordinal);
/* Launches a kernel that stores `value` at `address`, and waits; the first error. */
cu_result raw_store(cu_pointer address, unsigned value);

#endif
