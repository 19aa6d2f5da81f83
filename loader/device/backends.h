/* The entries of the device table, each in a file of its own. For device.c alone: everybody else calls device_find. */
#ifndef IPCC_DEVICE_BACKENDS_H
#define IPCC_DEVICE_BACKENDS_H

#include "loader/device/device.h"

extern const struct device device_host;

#endif
