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
	uint32_t every;	  /* to compare: each so many blocks; 0: all */
	bool keep;	  /* by this process */
};

/* Publishes them; a model of the same name is replaced. With w->keep *kept is to be kept, and freed, by the caller. */
int weights_publish(struct ipcc_client *client, const struct weights *w, struct ipcc_publish **kept,
		    struct ipcc_error *err);
/* Compares the bytes of a mapped model with what was made. */
int weights_check(const struct ipcc_model *model, const struct weights *w, struct ipcc_error *err);
/* The same, attaching by name and mapping. */
int weights_compare(struct ipcc_client *client, const struct weights *w, struct ipcc_error *err);

#endif
