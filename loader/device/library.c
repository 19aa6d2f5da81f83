/* Driver libraries, opened at run time over a table of {place, name}; see vendor.h. */
#include "loader/device/vendor.h"
#include "manifest/fail.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *open_first(const char *const *names, const char **opened, struct ipcc_error *err)
{
	char said[256] = "no name was given"; /* dlerror's text lives until the next call only */
	for (size_t i = 0; names[i] != NULL; i++) {
		void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
		if (library != NULL) {
			*opened = names[i];
			return library;
		}
		const char *error = dlerror();
		/* What is there but cannot be opened is worth more than what is not there. */
		if (error != NULL && (i == 0 || strstr(error, "No such file") == NULL))
			snprintf(said, sizeof(said), "%s", error);
	}
	fail(err, IPCC_NOT_FOUND, "no driver: %s", said);
	return NULL;
}

int library_open(const char *const *names, const struct symbol *symbols, size_t count, void *table, void **library,
		 struct ipcc_error *err)
{
	const char *name = NULL;
	void *opened = open_first(names, &name, err);
	if (opened == NULL)
		return IPCC_NOT_FOUND;
	void **found = calloc(count, sizeof(*found));
	int rc = found == NULL ? fail(err, IPCC_NO_MEMORY, "no memory for the functions of %s", name) : 0;
	for (size_t i = 0; rc == 0 && i < count; i++) {
		found[i] = dlsym(opened, symbols[i].name);
		if (found[i] == NULL)
			rc = fail(err, IPCC_FAILED, "%s is too old, or something else: it has no function %s", name,
				  symbols[i].name);
	}
	for (size_t i = 0; rc == 0 && i < count; i++)
		memcpy((char *)table + symbols[i].offset, &found[i], sizeof(found[i]));
	free(found);
	if (rc != 0)
		dlclose(opened);
	else
		*library = opened;
	return rc;
}

void library_close(void *library)
{
	dlclose(library);
}
