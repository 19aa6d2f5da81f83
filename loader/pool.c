/* See pool.h. */
#include "loader/pool.h"

#include <errno.h>
#include <sys/mman.h>

int pool_init(struct pool *pool, unsigned count, uint64_t buffer_bytes)
{
	uint64_t bytes = count * buffer_bytes;
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return -errno;
	/* Fewer, larger pieces to pin; without them it works as well. */
	madvise(memory, bytes, MADV_HUGEPAGE);
	*pool = (struct pool){.count = count, .buffer_bytes = buffer_bytes, .memory = memory};
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
		munmap(pool->memory, pool->count * pool->buffer_bytes);
	*pool = (struct pool){0};
}
