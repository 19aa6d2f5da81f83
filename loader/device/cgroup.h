/*
 * The memory limits of the cgroups above this process, v1 and v2.
 */
#ifndef IPCC_DEVICE_CGROUP_H
#define IPCC_DEVICE_CGROUP_H

#include <stdint.h>

/* One limit: what it still allows, its value, and the file that holds it (without the root of all paths). */
typedef void cgroup_limit_fn(void *context, uint64_t available_bytes, uint64_t limit_bytes, const char *file);

/* Calls `found` for each limit of each memory cgroup from this process's own up to the mount's root. What cannot be read is
 * passed over. `root` is put before every path. Thread-safe. */
void cgroup_limits(const char *root, cgroup_limit_fn *found, void *context);

/* The whole of a small text file, NUL-terminated, malloc'ed; NULL when it cannot be read. `root` is put before `path`. */
char *cgroup_read_text(const char *root, const char *path);

#endif
