/*
 * Filling a publication through its device's table (device.h), for programs that the client library is linked into: what a
 * device offers beyond ipcc_publish_write, windows above all, is no part of the library's interface.
 */
#ifndef IPCC_CLIENT_PUBLISH_MEMORY_H
#define IPCC_CLIENT_PUBLISH_MEMORY_H

#include "broker/client/ipc_cache.h"
#include "loader/device/device.h"

const struct device *publish_device(const struct ipcc_publish *publish);
/* A segment that is not complete yet; NULL: there is none of that number, or no longer. */
struct device_segment *publish_memory(struct ipcc_publish *publish, uint32_t segment);

#endif
