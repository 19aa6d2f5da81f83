/* See path.h. */
#include "manifest/path.h"

#include <string.h>

bool path_stays_inside(const char *path)
{
	for (const char *at = path;; at++) {
		size_t length = strcspn(at, "/");
		if (length == 0 || (length <= 2 && strncmp(at, "..", length) == 0))
			return false;
		at += length;
		if (*at == '\0')
			return true;
	}
}
