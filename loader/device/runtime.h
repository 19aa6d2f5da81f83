/*
 * Inside loader/device/ only: what HIP and MACA have in common: a runtime that knows a current device of each thread where
 * CUDA's driver has contexts, and names devices by their PCI address.
 *
 * A "context" of such a driver is its device's number; pushing one remembers the thread's device and popping it sets that
 * again.
 */
#ifndef IPCC_DEVICE_RUNTIME_H
#define IPCC_DEVICE_RUNTIME_H

#include "loader/device/vendor.h"

enum { RUNTIME_TO_DEVICE = 1, RUNTIME_FROM_DEVICE = 2, RUNTIME_WITHIN_DEVICE = 3 };

/* The functions whose shapes differ from CUDA's, as both have them. */
struct runtime {
	cu_result (*set_device)(int device);
	cu_result (*get_device)(int *device);
	cu_result (*bus_id)(char *text, int bytes, int device);
	const char *(*error_text)(cu_result result);
};

/* Fills in the slots of `driver` that follow from a runtime, which must live as long as the process. IPCC_REFUSED: another
 * one is in use already. */
int runtime_fill(struct driver *driver, const struct runtime *runtime, struct ipcc_error *err);
/* PREFIX and the PCI address. */
cu_result runtime_identify(const struct runtime *runtime, const char *prefix, cu_device device,
			   char name[DEVICE_NAME_BYTES]);

#endif
