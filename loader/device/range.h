/* Inside loader/device/ only: what the mapped segments of every backend have in common. */
#ifndef IPCC_DEVICE_RANGE_H
#define IPCC_DEVICE_RANGE_H

#include "loader/device/device.h"

#include <stddef.h>

/* `size` zeroed bytes for a backend's own struct, which begins with a struct device_range; that one has `device`, the
 * request's sizes, room for as many addresses, and a count of 0. NULL: IPCC_NO_MEMORY. One free() frees all. */
void *device_range_new(size_t size, const struct device *device, const struct device_request *request,
		       struct ipcc_error *err);

/* Are these bytes of the range? IPCC_USAGE names them if not. */
int device_range_check(const struct device_range *range, uint32_t segment, uint64_t offset, uint64_t bytes,
		       struct ipcc_error *err);

#endif
