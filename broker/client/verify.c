/* Hashing segments again, wherever they are; see ipc_cache.h. */
#include "broker/client/client.h"

#include "loader/device/device.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

/* Enough to keep a GPU's link busy while others hash. */
#define FETCH_THREADS 8

struct fetch_job {
	const struct fetched *from;
	struct hash128 *blocks;
	atomic_uint_fast64_t next;
	pthread_mutex_t lock;
	struct ipcc_error error; /* the first; code 0: none */
};

static bool fetch_block(struct fetch_job *job, uint64_t i, void *buffer)
{
	struct ipcc_error error = {0};
	const struct fetched *from = job->from;
	uint64_t begin = i * HASH_BLOCK_BYTES, left = from->bytes - begin;
	uint64_t bytes = left < HASH_BLOCK_BYTES ? left : HASH_BLOCK_BYTES;
	int rc = buffer == NULL ? fail(&error, IPCC_NO_MEMORY, "no memory to hash with")
				: from->fetch(from->context, begin, buffer, bytes, &error);
	if (rc == IPCC_OK) {
		job->blocks[i] = hash_bytes(buffer, bytes);
		return true;
	}
	pthread_mutex_lock(&job->lock);
	if (job->error.code == IPCC_OK)
		job->error = error;
	pthread_mutex_unlock(&job->lock);
	return false;
}

static void *fetch_blocks(void *argument)
{
	struct fetch_job *job = argument;
	uint64_t count = hash_block_count(job->from->bytes), i;
	void *buffer = malloc(HASH_BLOCK_BYTES);
	bool good = true;
	while (good && (i = atomic_fetch_add(&job->next, 1)) < count)
		good = fetch_block(job, i, buffer);
	if (!good)
		atomic_store(&job->next, count); /* the others stop too */
	free(buffer);
	return NULL;
}

int fetched_hash(const struct fetched *from, struct hash128 *blocks, struct hash128 *over, struct ipcc_error *err)
{
	uint64_t count = hash_block_count(from->bytes);
	if (from->address != NULL) {
		*over = hash_range(from->address, from->bytes, blocks, 0);
		return IPCC_OK;
	}
	struct fetch_job job = {.from = from, .blocks = blocks, .lock = PTHREAD_MUTEX_INITIALIZER};
	pthread_t threads[FETCH_THREADS];
	unsigned started = 0;
	sigset_t all, before;
	/* Signals are the caller's thread's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (started + 1 < FETCH_THREADS && started + 1 < count &&
	       pthread_create(&threads[started], NULL, fetch_blocks, &job) == 0)
		started++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	fetch_blocks(&job);
	for (unsigned i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	if (job.error.code != IPCC_OK) {
		if (err != NULL)
			*err = job.error;
		return job.error.code;
	}
	*over = hash_bytes(blocks, count * HASH_BYTES);
	return IPCC_OK;
}

static int compare_blocks(const struct mapping *mapping, const struct hash128 *want, const struct hash128 *have,
			  uint32_t segment, struct ipcc_error *err)
{
	uint64_t count = hash_block_count(mapping->bytes);
	for (uint64_t b = 0; b < count; b++) {
		if (memcmp(want[b].bytes, have[b].bytes, HASH_BYTES) == 0)
			continue;
		char expected[HASH_TEXT_BYTES], got[HASH_TEXT_BYTES], field[64];
		hash_text(&want[b], expected);
		hash_text(&have[b], got);
		snprintf(field, sizeof(field), "segments[%u].blocks[%" PRIu64 "]", segment, b);
		return fail_mismatch(
			err, field, expected, got,
			"segment %u, block %" PRIu64 " (offset %" PRIu64
			"): the resident bytes are damaged (hash %s, published %s); evict the model and load it again",
			segment, b, b * HASH_BLOCK_BYTES, got, expected);
	}
	return IPCC_OK;
}

struct segment_read {
	const struct ipcc_model *model;
	uint32_t segment;
};

static int read_segment(void *context, uint64_t offset, void *to, uint64_t bytes, struct ipcc_error *err)
{
	struct segment_read *read = context;
	return ipcc_read(read->model, read->segment, offset, to, bytes, err);
}

EXPORT int ipcc_verify_segment(const struct ipcc_model *model, uint32_t i, struct ipcc_error *err)
{
	int rc = model_check_number(model, SECTION_SEGMENTS, i, "segment", err);
	if (rc != IPCC_OK)
		return rc;
	const struct hash128 *want = manifest_blocks(&model->manifest, i);
	const struct mapping *mapping = &model->mappings[i];
	if (want == NULL)
		return fail(err, IPCC_NOT_FOUND, "segment %u: its publisher gave no hashes", i);
	if (mapping->range == NULL || model->suspended)
		return fail(err, IPCC_USAGE, "map the model before its segments are verified");
	cleanup_free struct hash128 *have = malloc(hash_block_count(mapping->bytes) * sizeof(*have));
	if (have == NULL)
		return fail_errno(err, ENOMEM, "cannot verify segment %u", i);
	struct segment_read read = {model, i};
	struct fetched from = {.address = mapping->range->device->is_host ? mapping->address : NULL,
			       .bytes = mapping->bytes,
			       .fetch = read_segment,
			       .context = &read};
	struct hash128 over;
	rc = fetched_hash(&from, have, &over, err);
	return rc != IPCC_OK ? rc : compare_blocks(mapping, want, have, i, err);
}
