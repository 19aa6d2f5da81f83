/* See raw.h. */
#include "tests/gpu/raw.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

struct raw cu;

/* Any driver compiles it: __global__ void store(unsigned *address, unsigned value) { *address = value; } */
static const char store_ptx[] = ".version 6.5\n.target sm_75\n.address_size 64\n"
				".visible .entry store(.param .u64 a, .param .u32 v)\n{\n"
				"\t.reg .b64 %rd<3>;\n\t.reg .b32 %r<2>;\n"
				"\tld.param.u64 %rd1, [a];\n\tld.param.u32 %r1, [v];\n"
				"\tcvta.to.global.u64 %rd2, %rd1;\n\tst.global.u32 [%rd2], %r1;\n\tret;\n}\n";

cu_result raw_load(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (library == NULL) {
		fprintf(stderr, "no driver: %s\n", dlerror());
		exit(77);
	}
#define LOAD(slot, name, parameters)                                                                                   \
	*(void **)&cu.slot = dlsym(library, #name);                                                                    \
	if (cu.slot == NULL) {                                                                                         \
		fprintf(stderr, "the driver has no function " #name "\n");                                             \
		exit(1);                                                                                               \
	}
	CUDA_FUNCTIONS(LOAD)
	RAW_EXTRA(LOAD)
	return cu.init(0);
}

const char *raw_error(cu_result result)
{
	const char *name = NULL;
	cu.error_name(result, &name);
	return name != NULL ? name : "an error without a name";
}

void raw_must(cu_result result, const char *what)
{
	if (result == CU_OK)
		return;
	fprintf(stderr, "%s: %s (%d)\n", what, raw_error(result), result);
	exit(1);
}

void raw_context(int ordinal)
{
	cu_device device;
	cu_context context;
	raw_must(cu.device_get(&device, ordinal), "cuDeviceGet");
	raw_must(cu.context_retain(&context, device), "cuDevicePrimaryCtxRetain");
	raw_must(cu.context_set(context), "cuCtxSetCurrent");
}

cu_result raw_store(cu_pointer address, unsigned value)
{
	void *module, *function, *parameters[] = {&address, &value};
	cu_result r = cu.module_load(&module, store_ptx);
	if (r == CU_OK)
		r = cu.module_function(&function, module, "store");
	if (r == CU_OK)
		r = cu.launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
	return r == CU_OK ? cu.context_wait() : r;
}
