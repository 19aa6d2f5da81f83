/* See memory.h. */
#include "loader/device/memory.h"

#include "loader/device/cgroup.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMINFO "/proc/meminfo"

/* What besides the bytes themselves: page tables of one mapping (8 bytes a page) and the page cache's tree (576 bytes for
 * 64 pages), together under 1/200; and the loader's own buffers. */
#define OVERHEAD_DIVISOR 200
#define OVERHEAD_BYTES	 ((uint64_t)16 << 20)

/* "MemAvailable:   24354300 kB" in bytes, or 0. */
static uint64_t meminfo_bytes(const char *text, const char *name)
{
	const char *line = strstr(text, name);
	return line != NULL ? strtoull(line + strlen(name), NULL, 10) * 1024 : 0;
}

static void take_limit(void *context, uint64_t available_bytes, uint64_t limit_bytes, const char *file)
{
	struct memory_room *room = context;
	size_t length = strlen(file);

	if (available_bytes >= room->available_bytes)
		return;
	room->available_bytes = available_bytes;
	room->limit_bytes = limit_bytes;
	room->cgroup = true;
	if (length < sizeof(room->bound_by))
		memcpy(room->bound_by, file, length + 1);
	else
		snprintf(room->bound_by, sizeof(room->bound_by), "...%s", file + length - (sizeof(room->bound_by) - 4));
}

int memory_room(const char *root, struct memory_room *room, struct ipcc_error *err)
{
	cleanup_free char *meminfo = cgroup_read_text(root, MEMINFO);

	if (meminfo == NULL)
		return fail_errno(err, errno, MEMINFO ": cannot be read, so free memory is unknown");
	struct memory_room found = {
		.available_bytes = meminfo_bytes(meminfo, "MemAvailable:"),
		.limit_bytes = meminfo_bytes(meminfo, "MemTotal:"),
		.bound_by = MEMINFO,
	};
	cgroup_limits(root, take_limit, &found);
	*room = found;
	return 0;
}

struct size_text {
	char text[32];
};

static struct size_text size_text(uint64_t bytes)
{
	struct size_text s;

	if (bytes >= (uint64_t)1 << 30)
		snprintf(s.text, sizeof(s.text), "%.1f GiB", (double)bytes / (1 << 30));
	else
		snprintf(s.text, sizeof(s.text), "%.1f MiB", (double)bytes / (1 << 20));
	return s;
}

int memory_check(const char *root, uint64_t bytes, struct ipcc_error *err)
{
	struct memory_room room;
	uint64_t overhead = bytes / OVERHEAD_DIVISOR + OVERHEAD_BYTES;

	int r = memory_room(root, &room, err);
	if (r != 0)
		return r;
	if (bytes <= room.available_bytes && overhead <= room.available_bytes - bytes)
		return 0;
	if (room.cgroup)
		return fail(
			err, IPCC_NO_MEMORY,
			"%s of memory (and %s of overhead) are needed, %s are left under the limit of %s in %s; raise "
			"that limit, end something in that cgroup, or load a smaller model",
			size_text(bytes).text, size_text(overhead).text, size_text(room.available_bytes).text,
			size_text(room.limit_bytes).text, room.bound_by);
	return fail(
		err, IPCC_NO_MEMORY,
		"%s of memory (and %s of overhead) are needed, %s of %s are available (MemAvailable in %s); evict a "
		"model, end something, or load a smaller model",
		size_text(bytes).text, size_text(overhead).text, size_text(room.available_bytes).text,
		size_text(room.limit_bytes).text, room.bound_by);
}
