/*
 * What is one GPU vendor's own: how its driver is found, what its devices are called. A new vendor is one such table.
 */
#ifndef IPCC_DEVICE_VENDOR_H
#define IPCC_DEVICE_VENDOR_H

#include "loader/device/cuda_abi.h"
#include "loader/device/device.h"

struct vendor {
	const char *kind;    /* "cuda" */
	const char *prefix;  /* of its devices' names: "GPU-" */
	const char *visible; /* the environment variable that hides devices */
	/* Opens the library and initialises the driver. Nothing stays open on failure. The library stays open for the
	 * life of the process afterwards: drivers do not survive being closed. */
	int (*load)(struct driver *driver, struct ipcc_error *err);
	/* A device's name, prefix included. */
	cu_result (*identify)(const struct driver *driver, cu_device device, char name[DEVICE_NAME_BYTES]);
	/* Whether memory of a device can be exported as fds; NULL: the driver has no word for that, its granularity tells. */
	cu_result (*exports_fds)(const struct driver *driver, cu_device device, int *can);
	/* Legacy IPC handles: how long they are, getting one, opening it in the current context. */
	uint32_t legacy_bytes;
	cu_result (*legacy_get)(const struct driver *driver, cu_pointer address, uint8_t *handle);
	cu_result (*legacy_open)(const struct driver *driver, const uint8_t *handle, cu_pointer *address);
	bool legacy_stays; /* closing one may wait for ever: what was opened stays so until the process ends */
};

/* As CUDA and HIP have them, with handles of CU_IPC_BYTES. */
cu_result legacy_get(const struct driver *driver, cu_pointer address, uint8_t *handle);
cu_result legacy_open(const struct driver *driver, const uint8_t *handle, cu_pointer *address);

/* One function of a library, and where its address goes. */
struct symbol {
	size_t offset; /* in the table */
	const char *name;
};

/* Opens the first of `names` (up to NULL) that there is and stores the addresses of all symbols in `table`; all stay as
 * they were when one is missing. IPCC_NOT_FOUND: no such library; IPCC_FAILED: one without such a function. */
int library_open(const char *const *names, const struct symbol *symbols, size_t count, void *table, void **library,
		 struct ipcc_error *err);
void library_close(void *library);

#endif
