/*
 * A worker's buffers: aligned for O_DIRECT, used again and again, and pinned where a device takes bytes from them by itself.
 * One thread's. A buffer is pinned when something is first sent from it: pinning is serial in a driver, and so the first
 * transfers need not wait for the last buffer.
 *
 * Invariant: what was sent from a buffer is waited for (pool_settle) before anything is read into it again.
 */
#ifndef IPCC_LOADER_POOL_H
#define IPCC_LOADER_POOL_H

#include "loader/device/device.h"

#include <stdbool.h>
#include <stdint.h>

#define POOL_MAX_BUFFERS 8

struct pool {
	unsigned count;
	uint64_t buffer_bytes;
	uint8_t *memory;	     /* NULL: none yet */
	const struct device *device; /* of the windows; NULL: there are none */
	struct device_window *windows[POOL_MAX_BUFFERS];
	bool sent[POOL_MAX_BUFFERS]; /* from this buffer, and not waited for */
};

/* `count` buffers of `buffer_bytes` bytes each, a multiple of the page size. 0 or a negative errno. */
int pool_init(struct pool *pool, unsigned count, uint64_t buffer_bytes);
/* Pins a buffer, if it is not. After a failure it is as good as before. */
int pool_pin(struct pool *pool, unsigned buffer, const struct device *device, const char *device_name,
	     struct ipcc_error *err);
/* Waits for what was sent from a buffer; the error is the device's. */
int pool_settle(struct pool *pool, unsigned buffer, struct ipcc_error *err);
/* Waits for everything, whatever became of it. Harmless on a zeroed struct. */
void pool_fini(struct pool *pool);

static inline uint8_t *pool_buffer(const struct pool *pool, unsigned buffer)
{
	return pool->memory + buffer * pool->buffer_bytes;
}

#endif
