/*
 * How much memory may still be allocated before somebody gets killed: the smallest of what the machine has available and
 * what each memory cgroup above this process still allows, page cache that can be dropped counted as free.
 *
 * cgroup v2, v1, and both side by side; cgroups are found where mountinfo says that they are mounted, so that containers
 * with and without a cgroup namespace work.
 */
#ifndef IPCC_DEVICE_MEMORY_H
#define IPCC_DEVICE_MEMORY_H

#include "manifest/error.h"

#include <stdbool.h>
#include <stdint.h>

struct memory_room {
	uint64_t available_bytes; /* the smallest found */
	uint64_t limit_bytes;	  /* of the cgroup that bounds it; the machine's memory otherwise */
	bool cgroup;		  /* bounded by a cgroup, not by the machine */
	char bound_by[512];	  /* path of the file that bounds it, without `root`; cut at the front where too long */
};

/* `root` is put before every path, "" for the real system. IPCC_FAILED when /proc/meminfo cannot be read; cgroups that
 * cannot be read do not count. *room is untouched on failure. Thread-safe. */
int memory_room(const char *root, struct memory_room *room, struct ipcc_error *err);

/* Would `bytes` more bytes fit, with what the kernel and the loader need besides? IPCC_NO_MEMORY says what is free, what
 * limits it and what to do. Thread-safe. */
int memory_check(const char *root, uint64_t bytes, struct ipcc_error *err);

#endif
