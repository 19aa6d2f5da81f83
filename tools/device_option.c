/* See device_option.h. */
#include "tools/device_option.h"

#include <stdio.h>
#include <string.h>

#define UUID_NAME_CHARS (sizeof("GPU-01234567-0123-0123-0123-0123456789ab") - 1)

int device_option(struct device_option *option, const char *text, const struct ipcc_field **fields, uint32_t *count,
		  struct ipcc_error *err)
{
	if (text == NULL)
		return IPCC_OK;
	int rc = IPCC_OK;
	if (strncmp(text, "GPU-", 4) == 0 && strlen(text) == UUID_NAME_CHARS)
		snprintf(option->name, sizeof(option->name), "%s", text);
	else
		rc = ipcc_device(text, option->name, err);
	if (rc != IPCC_OK)
		return rc;
	option->field = (struct ipcc_field){"device", option->name};
	*fields = &option->field;
	*count = 1;
	return IPCC_OK;
}
