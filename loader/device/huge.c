/* See huge.h. */
#include "loader/device/huge.h"

#include "loader/device/cgroup.h"
#include "manifest/fd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define SHMEM_ENABLED "/sys/kernel/mm/transparent_hugepage/shmem_enabled"

bool huge_advise(void *address, uint64_t bytes)
{
	cleanup_free char *setting = cgroup_read_text("", SHMEM_ENABLED);

	if (bytes < HUGE_BYTES || setting == NULL || strstr(setting, "[never]") != NULL ||
	    strstr(setting, "[deny]") != NULL)
		return false;
	return madvise(address, bytes, MADV_HUGEPAGE) == 0;
}

/* Without it the copy faults page by page, and a lack of memory is a signal instead of an error. */
static int populate(uint8_t *to, uint64_t bytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint8_t *begin = to - (uintptr_t)to % page;
	int r;

	do
		r = madvise(begin, (size_t)(to + bytes - begin), MADV_POPULATE_WRITE);
	while (r < 0 && (errno == EINTR || errno == EAGAIN));
	return r == 0 || errno == EINVAL ? 0 : -errno;
}

int huge_copy(void *to, const void *from, uint64_t bytes)
{
	int r = populate(to, bytes);
	if (r == 0)
		memcpy(to, from, bytes);
	return r;
}

uint64_t huge_bytes_of(const void *address)
{
	cleanup_free char *maps = cgroup_read_text("", "/proc/self/smaps");
	char start[24];

	if (maps == NULL)
		return 0;
	snprintf(start, sizeof(start), "%" PRIxPTR "-", (uintptr_t)address);
	const char *at = maps;
	while (at != NULL && strncmp(at, start, strlen(start)) != 0) {
		at = strchr(at, '\n');
		at = at != NULL ? at + 1 : NULL;
	}
	const char *line = at != NULL ? strstr(at, "ShmemPmdMapped:") : NULL;
	return line != NULL ? strtoull(line + strlen("ShmemPmdMapped:"), NULL, 10) * 1024 : 0;
}
