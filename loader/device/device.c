/* The device table. See device.h. */
#include "loader/device/device.h"

#include "loader/device/backends.h"
#include "manifest/fail.h"

#include <string.h>

const struct device *device_find(const char *device, struct ipcc_error *err)
{
	if (strcmp(device, DEVICE_HOST) == 0)
		return &device_host;
	fail(err, IPCC_NOT_FOUND, "device '%.80s' is not served; this build serves: " DEVICE_HOST, device);
	return NULL;
}
