/*
 * Hashing through xxHash, on one thread or several.
 *
 * Parallel hashing shares one job: each worker takes the next block number from an atomic counter until none is left.
 */
#include "manifest/hash.h"

#include "manifest/fd.h"
#include "manifest/workers.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __x86_64__
#include <xxh_x86dispatch.h> /* renames the XXH3 functions to their dispatching variants */
#else
#include <xxhash.h>
#endif

_Static_assert(sizeof(XXH128_canonical_t) == HASH_BYTES, "a hash is the canonical XXH128");

/* Each reading worker needs a buffer, and more than this never read faster. */
#define HASH_MAX_FILE_THREADS 16

static struct hash128 canonical(XXH128_hash_t value)
{
	XXH128_canonical_t text;
	struct hash128 hash;

	XXH128_canonicalFromHash(&text, value);
	memcpy(hash.bytes, text.digest, HASH_BYTES);
	return hash;
}

struct hash128 hash_bytes(const void *bytes, size_t length)
{
	return canonical(XXH3_128bits(bytes, length));
}

uint64_t hash_name(const void *bytes, size_t length, uint64_t seed)
{
	return XXH3_64bits_withSeed(bytes, length, seed);
}

void hash_text(const struct hash128 *hash, char text[HASH_TEXT_BYTES])
{
	static const char digits[] = "0123456789abcdef";
	for (size_t i = 0; i < HASH_BYTES; i++) {
		text[2 * i] = digits[hash->bytes[i] >> 4];
		text[2 * i + 1] = digits[hash->bytes[i] & 15];
	}
	text[2 * HASH_BYTES] = '\0';
}

static size_t block_bytes(uint64_t bytes, uint64_t index)
{
	uint64_t left = bytes - index * HASH_BLOCK_BYTES;
	return left < HASH_BLOCK_BYTES ? left : HASH_BLOCK_BYTES;
}

struct hash128 hash_block(const void *base, uint64_t bytes, uint64_t index)
{
	return hash_bytes((const uint8_t *)base + index * HASH_BLOCK_BYTES, block_bytes(bytes, index));
}

struct hash_job {
	const void *base; /* NULL: read from fd */
	int fd;
	uint64_t bytes;
	struct hash128 *blocks;
	const atomic_bool *cancel;
	atomic_uint_fast64_t next;
	atomic_int error; /* the first negative errno */
};

static void hash_memory(void *context)
{
	struct hash_job *job = context;
	uint64_t count = hash_block_count(job->bytes), i;

	while ((i = atomic_fetch_add(&job->next, 1)) < count)
		job->blocks[i] = hash_block(job->base, job->bytes, i);
}

static void fail_job(struct hash_job *job, int error)
{
	int none = 0;
	atomic_compare_exchange_strong(&job->error, &none, error);
}

static void hash_reads(void *context)
{
	struct hash_job *job = context;
	uint64_t count = hash_block_count(job->bytes), i;
	cleanup_free void *buffer = malloc(HASH_BLOCK_BYTES);

	if (buffer == NULL) {
		fail_job(job, -ENOMEM);
		return;
	}
	while (atomic_load(&job->error) == 0 && (i = atomic_fetch_add(&job->next, 1)) < count) {
		size_t length = block_bytes(job->bytes, i);
		bool canceled = job->cancel != NULL && atomic_load(job->cancel);
		int result = canceled ? -ECANCELED : fd_read_exact(job->fd, buffer, length, i * HASH_BLOCK_BYTES);
		if (result < 0)
			fail_job(job, result);
		else
			job->blocks[i] = hash_bytes(buffer, length);
	}
}

static unsigned usable_threads(unsigned threads, unsigned limit, uint64_t blocks)
{
	if (threads == 0) {
		long online = sysconf(_SC_NPROCESSORS_ONLN);
		threads = online < 1 ? 1 : (unsigned)online;
	}
	if (threads > limit)
		threads = limit;
	return threads > blocks ? (unsigned)blocks : threads;
}

struct hash128 hash_range(const void *base, uint64_t bytes, struct hash128 *blocks, unsigned threads)
{
	struct hash_job job = {.base = base, .fd = -1, .bytes = bytes, .blocks = blocks};
	uint64_t count = hash_block_count(bytes);

	workers_run(usable_threads(threads, WORKERS_MAX, count), hash_memory, &job);
	return hash_bytes(blocks, count * HASH_BYTES);
}

int hash_file(int fd, uint64_t bytes, unsigned threads, const atomic_bool *cancel, struct hash128 *content)
{
	uint64_t count = hash_block_count(bytes);
	cleanup_free struct hash128 *blocks = malloc(count == 0 ? 1 : count * HASH_BYTES);
	if (blocks == NULL)
		return -ENOMEM;

	struct hash_job job = {.fd = fd, .bytes = bytes, .blocks = blocks, .cancel = cancel};
	if (count > 0)
		workers_run(usable_threads(threads, HASH_MAX_FILE_THREADS, count), hash_reads, &job);
	int error = atomic_load(&job.error);
	if (error == 0)
		*content = hash_bytes(blocks, count * HASH_BYTES);
	return error;
}

/* struct checksum is never defined: a pointer to one is xxHash's state, whose size is xxHash's business. */
static XXH3_state_t *state_of(struct checksum *sum)
{
	return (XXH3_state_t *)sum;
}

struct checksum *checksum_new(void)
{
	struct checksum *sum = (struct checksum *)XXH3_createState();
	if (sum != NULL)
		checksum_restart(sum);
	return sum;
}

void checksum_free(struct checksum *sum)
{
	XXH3_freeState(state_of(sum));
}

void checksum_restart(struct checksum *sum)
{
	XXH3_64bits_reset(state_of(sum));
}

void checksum_add(struct checksum *sum, const void *bytes, size_t length)
{
	XXH3_64bits_update(state_of(sum), bytes, length);
}

uint64_t checksum_value(const struct checksum *sum)
{
	return XXH3_64bits_digest((const XXH3_state_t *)sum);
}

struct hash128 checksum_hash(const struct checksum *sum)
{
	return canonical(XXH3_128bits_digest((const XXH3_state_t *)sum));
}
