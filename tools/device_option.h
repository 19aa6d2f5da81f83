/* The option that tells models of the same name on several devices apart. */
#ifndef IPCC_TOOLS_DEVICE_OPTION_H
#define IPCC_TOOLS_DEVICE_OPTION_H

#include "broker/client/ipc_cache.h"

struct device_option {
	char name[IPCC_DEVICE_CHARS];
	struct ipcc_field field;
};

/* Points *fields at a key field that asks for the device that the user calls `text`; leaves them alone when it is NULL. A
 * full name is taken as it is: the GPU may be hidden from this process. */
int device_option(struct device_option *option, const char *text, const struct ipcc_field **fields, uint32_t *count,
		  struct ipcc_error *err);

#endif
