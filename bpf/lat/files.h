/*
 * Where the probes are: broker, command and library, as running processes have them open (in whatever mount namespace, also
 * when the file has been replaced since) and as they are installed.
 */
#ifndef LAT_FILES_H
#define LAT_FILES_H

#include "bpf/lat/lat.h"

#include <sys/types.h>

struct lat_file {
	char *path; /* through which it is reached: may begin with /proc/PID/ */
	char *name; /* what it is called there */
	dev_t device;
	ino_t inode;
	bool seen; /* the caller's */
};

struct lat_files {
	unsigned count;
	struct lat_file *files;
};

/* Adds those that are new. */
void files_find(struct lat_files *files);
/* Adds one that the user names. LAT_NOT_FOUND. */
int files_add(struct lat_files *files, const char *path, struct lat_error *err);
void files_fini(struct lat_files *files);

#endif
