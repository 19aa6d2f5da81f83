/* See pool.h. */
#include "loader/pool.h"

#include "loader/device/huge.h"
#include "manifest/bytes.h"

#include <errno.h>
#include <sys/mman.h>

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

static uint64_t mapped_bytes(const struct pool *pool)
{
	return align_up(pool->count * pool->buffer_bytes, HUGE_BYTES);
}

int pool_init(struct pool *pool, unsigned count, uint64_t buffer_bytes)
{
	struct pool made = {.count = count, .buffer_bytes = buffer_bytes};

	made.memory = map_huge(mapped_bytes(&made));
	if (made.memory == NULL)
		return -errno;
	*pool = made;
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
		munmap(pool->memory, mapped_bytes(pool));
	*pool = (struct pool){0};
}
