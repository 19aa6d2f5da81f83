/* The entries of the device table, each in a file of its own. For device.c alone: everybody else calls device_find. */
#ifndef IPCC_DEVICE_BACKENDS_H
#define IPCC_DEVICE_BACKENDS_H

#include "loader/device/device.h"
#include "loader/device/vendor.h"

extern const struct device device_host;

/* All GPUs, whoever made them: gpu.c finds the vendor by a device's name. */
extern const struct device device_gpu;
/* Their memory that has no fd; see gpu_kept.c. */
extern const struct device device_gpu_kept;

/* The vendors, in the order in which `auto` and lists have them. */
extern const struct vendor vendor_cuda;
extern const struct vendor vendor_hip;
extern const struct vendor vendor_maca;

#endif
