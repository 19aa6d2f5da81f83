/* See pool.h. */
#include "loader/pool.h"

#include "manifest/bytes.h"

#include <errno.h>
#include <sys/mman.h>

#define HUGE_BYTES ((uint64_t)2 << 20)

/* Whole huge pages, where the system has any: a device that reads into small ones gets a list of 4 KiB pieces, and took
 * three times as long on a virtual disk. Older kernels do not place mappings at such boundaries by themselves. */
static void *map_huge(uint64_t bytes)
{
	uint8_t *map = mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (map == MAP_FAILED)
		return NULL;
	uint64_t before = align_up((uintptr_t)map, HUGE_BYTES) - (uintptr_t)map;
	if (before > 0)
		munmap(map, before);
	if (before < HUGE_BYTES)
		munmap(map + before + bytes, HUGE_BYTES - before);
	madvise(map + before, bytes, MADV_HUGEPAGE);
	return map + before;
}

int pool_init(struct pool *pool, unsigned count, uint64_t buffer_bytes)
{
	uint64_t bytes = align_up(count * buffer_bytes, HUGE_BYTES);
	void *memory = map_huge(bytes);

	if (memory == NULL)
		return -errno;
	*pool = (struct pool){.count = count, .buffer_bytes = buffer_bytes, .memory = memory, .mapped_bytes = bytes};
	return 0;
}

int pool_pin(struct pool *pool, unsigned buffer, const struct device *device, const char *device_name,
	     struct ipcc_error *err)
{
	if (pool->windows[buffer] != NULL)
		return 0;
	pool->device = device;
	return device->window_open(device_name, pool_buffer(pool, buffer), pool->buffer_bytes, &pool->windows[buffer],
				   err);
}

int pool_settle(struct pool *pool, unsigned buffer, struct ipcc_error *err)
{
	if (!pool->sent[buffer])
		return 0;
	pool->sent[buffer] = false;
	return pool->device->window_wait(pool->windows[buffer], err);
}

void pool_fini(struct pool *pool)
{
	for (unsigned i = 0; i < pool->count && pool->device != NULL; i++)
		pool->device->window_close(pool->windows[i]);
	if (pool->memory != NULL)
		munmap(pool->memory, pool->mapped_bytes);
	*pool = (struct pool){0};
}
