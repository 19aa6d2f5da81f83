/* The entries of the device table, each in a file of its own. For device.c alone: everybody else calls device_find. */
#ifndef IPCC_DEVICE_BACKENDS_H
#define IPCC_DEVICE_BACKENDS_H

#include "loader/device/device.h"
#include "loader/device/vendor.h"

extern const struct device device_host;

/* All GPUs go through one entry per vendor, which differ in `kind` alone: gpu.c finds the vendor by a device's name. */
extern const struct device device_cuda;

extern const struct vendor vendor_cuda;

#endif
