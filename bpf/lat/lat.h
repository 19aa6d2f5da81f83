/* ipc-cache-lat: exit statuses, errors and texts. Nothing of the rest of the project is linked in. */
#ifndef LAT_LAT_H
#define LAT_LAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ipc-cache-lat(1) documents them. */
enum lat_status {
	LAT_OK = 0,
	LAT_FAILED = 1,
	LAT_USAGE = 2,
	LAT_NOT_FOUND = 3,    /* a file, or nothing of ipc-cache at all */
	LAT_NO_PROBES = 4,    /* files that were built without */
	LAT_NO_PRIVILEGE = 6, /* as ipc-cache's "refused" */
	LAT_NO_SUPPORT = 7,   /* the kernel lacks something */
};

struct lat_error {
	int status;
	char text[1024];
};

/* Stores status and sentence; returns the status. */
int lat_fail(struct lat_error *err, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Returns `memory`, or ends the program when that is NULL. */
void *lat_checked(void *memory);

/* For people: control characters and what the locale cannot show become \xNN. Valid until the fourth next call. */
const char *lat_shown(const char *text);

#endif
