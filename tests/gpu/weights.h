/* Pretended weights: bytes that anybody can make again from a seed and a place, so that what arrived can be compared. */
#ifndef IPCC_TESTS_GPU_WEIGHTS_H
#define IPCC_TESTS_GPU_WEIGHTS_H

#include "broker/client/ipc_cache.h"

#define WEIGHTS_BLOCK	     ((uint64_t)4 << 20)
#define WEIGHTS_MAX_SEGMENTS 252

/* The bytes of block `block` of segment `segment`. */
void weights_make(uint64_t seed, uint32_t segment, uint64_t block, void *to, uint64_t bytes);

struct weights {
	const char *name;
	const char *device; /* as users call it */
	uint64_t seed;
	uint32_t segments;
	uint64_t segment_bytes;
	uint32_t tensors; /* of each segment */
	bool keep;	  /* by this process */
};

/* Publishes them; a model of the same name is replaced. With w->keep *kept is to be kept, and freed, by the caller. */
int weights_publish(struct ipcc_client *client, const struct weights *w, struct ipcc_publish **kept,
		    struct ipcc_error *err);
/* Attaches by name, maps, and compares every byte of it with what was made. */
int weights_compare(struct ipcc_client *client, const struct weights *w, struct ipcc_error *err);

#endif
