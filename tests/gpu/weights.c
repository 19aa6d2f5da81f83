/* See weights.h. Blocks are made, written and compared by several threads. */
#include "tests/gpu/weights.h"

#include "manifest/fail.h"
#include "manifest/hash.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void weights_make(uint64_t seed, uint32_t segment, uint64_t block, void *to, uint64_t bytes)
{
	uint64_t x =
		(seed + 1) * 0x9e3779b97f4a7c15 ^ (segment + 1) * 0xbf58476d1ce4e5b9 ^ (block + 1) * 0x94d049bb133111eb;
	uint64_t *words = to;
	for (uint64_t i = 0; i < bytes / sizeof(*words); i++) {
		x += 0x9e3779b97f4a7c15;
		words[i] = (x ^ x >> 29) * 0xbf58476d1ce4e5b9;
	}
}

struct job {
	const struct weights *w;
	struct ipcc_publish *publish;	/* to write to, or ... */
	const struct ipcc_model *model; /* ... to compare with */
	struct hash128 *hashes;
	uint64_t per_segment;
	atomic_uint_fast64_t next;
	atomic_int code;
	struct ipcc_error error;
	pthread_mutex_t lock;
};

static int one_block(struct job *job, uint64_t i, char *made, char *read, struct ipcc_error *err)
{
	uint32_t segment = (uint32_t)(i / job->per_segment);
	uint64_t block = i % job->per_segment, offset = block * WEIGHTS_BLOCK, left = job->w->segment_bytes - offset;
	uint64_t bytes = left < WEIGHTS_BLOCK ? left : WEIGHTS_BLOCK;
	weights_make(job->w->seed, segment, block, made, bytes);
	if (job->publish != NULL) {
		job->hashes[i] = hash_bytes(made, bytes);
		return ipcc_publish_write(job->publish, segment, offset, made, bytes, err);
	}
	int rc = ipcc_read(job->model, segment, offset, read, bytes, err);
	if (rc == IPCC_OK && memcmp(made, read, bytes) != 0)
		rc = fail(err, IPCC_MISMATCH, "segment %u, block %llu has other bytes", segment,
			  (unsigned long long)block);
	return rc;
}

static void *work(void *argument)
{
	struct job *job = argument;
	char *made = malloc(WEIGHTS_BLOCK), *read = malloc(WEIGHTS_BLOCK);
	uint64_t i;
	struct ipcc_error err;
	uint64_t step = job->w->every > 0 ? job->w->every : 1;
	while (atomic_load(&job->code) == 0 &&
	       (i = atomic_fetch_add(&job->next, step)) < job->per_segment * job->w->segments) {
		int rc = one_block(job, i, made, read, &err);
		if (rc == IPCC_OK)
			continue;
		pthread_mutex_lock(&job->lock);
		if (atomic_exchange(&job->code, rc) == 0)
			job->error = err;
		pthread_mutex_unlock(&job->lock);
	}
	free(made);
	free(read);
	return NULL;
}

static int run(struct job *job, struct ipcc_error *err)
{
	pthread_t threads[16];
	long online = sysconf(_SC_NPROCESSORS_ONLN);
	int count = online > 16 ? 16 : (int)online, started = 0;
	job->per_segment = hash_block_count(job->w->segment_bytes);
	pthread_mutex_init(&job->lock, NULL);
	while (started + 1 < count && pthread_create(&threads[started], NULL, work, job) == 0)
		started++;
	work(job);
	while (started > 0)
		pthread_join(threads[--started], NULL);
	if (job->code != 0)
		*err = job->error;
	return job->code;
}

static int describe(struct ipcc_publish *publish, const struct weights *w, struct ipcc_error *err)
{
	uint64_t bytes = w->segment_bytes / w->tensors / 256 * 256;
	int rc = IPCC_OK;
	for (uint32_t i = 0; rc == IPCC_OK && i < w->segments * w->tensors; i++) {
		char name[64];
		snprintf(name, sizeof(name), "layer.%u.weight", i);
		struct ipcc_tensor t = {.name = name,
					.dtype = IPCC_DTYPE_BF16,
					.rank = 1,
					.shape = {bytes / 2},
					.strides = {1},
					.segment = i / w->tensors,
					.offset = i % w->tensors * bytes,
					.bytes = bytes};
		rc = ipcc_publish_tensor(publish, &t, err);
	}
	return rc;
}

int weights_publish(struct ipcc_client *client, const struct weights *w, struct ipcc_publish **kept,
		    struct ipcc_error *err)
{
	char device[IPCC_DEVICE_CHARS];
	uint64_t sizes[WEIGHTS_MAX_SEGMENTS];
	struct ipcc_field fields[] = {{"device", device}, {"layout", "test"}, {"model", w->name}};
	struct ipcc_publish_options options = {.name = w->name,
					       .fields = fields,
					       .field_count = 3,
					       .device = device,
					       .segment_bytes = sizes,
					       .segment_count = w->segments,
					       .replace = true,
					       .keep = w->keep};
	struct ipcc_publish *publish;
	struct job job = {.w = w};
	for (uint32_t i = 0; i < w->segments; i++)
		sizes[i] = w->segment_bytes;
	int rc = ipcc_device(w->device, device, err);
	if (rc == IPCC_OK)
		rc = ipcc_publish_begin(client, &options, &publish, err);
	if (rc != IPCC_OK)
		return rc;
	job.publish = publish;
	uint64_t blocks = hash_block_count(w->segment_bytes);
	job.hashes = calloc(blocks * w->segments, sizeof(*job.hashes));
	rc = run(&job, err);
	/* The hashes are those of what was meant, not of what is there: a verify compares the two. */
	for (uint32_t i = 0; rc == IPCC_OK && i < w->segments; i++)
		rc = ipcc_publish_hashes(publish, i, &job.hashes[i * blocks].bytes, (uint32_t)blocks, err);
	if (rc == IPCC_OK)
		rc = describe(publish, w, err);
	if (rc == IPCC_OK)
		rc = ipcc_publish_commit(publish, NULL, NULL, err);
	if (rc == IPCC_OK && w->keep)
		*kept = publish;
	else
		ipcc_publish_free(publish);
	free(job.hashes);
	return rc;
}

int weights_check(const struct ipcc_model *model, const struct weights *w, struct ipcc_error *err)
{
	struct job job = {.w = w, .model = model};
	return run(&job, err);
}

int weights_compare(struct ipcc_client *client, const struct weights *w, struct ipcc_error *err)
{
	struct ipcc_model *model;
	int rc = ipcc_attach(client, &(struct ipcc_attach_options){.model = w->name}, &model, err);
	if (rc != IPCC_OK)
		return rc;
	rc = ipcc_map(model, 0, err);
	if (rc == IPCC_OK)
		rc = weights_check(model, w, err);
	ipcc_model_free(model);
	return rc;
}
