/*
 * XXH3, through xxHash's run-time dispatch on x86 (AVX2 and AVX-512 where the processor has them) and the plain
 * functions elsewhere.
 *
 * Content hash of a byte range: XXH3-128 (canonical, big-endian bytes) of each block of HASH_BLOCK_BYTES, the last one
 * shorter, and XXH3-128 over the concatenated block hashes. Blocks can be hashed in any order and by any number of
 * threads, and a damaged block can be named.
 */
#ifndef IPCC_MANIFEST_HASH_H
#define IPCC_MANIFEST_HASH_H

#include "manifest/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 4 MiB: large enough that the hashes of a 54 GiB model take 216 KiB, small enough to stay in a core's L2 and L3. */
#define HASH_BLOCK_BYTES ((uint64_t)4 << 20)
#define HASH_BYTES	 16
#define HASH_TEXT_BYTES	 (2 * HASH_BYTES + 1)

struct hash128 {
	uint8_t bytes[HASH_BYTES];
};

struct hash128 hash_bytes(const void *bytes, size_t length);
uint64_t hash_name(const void *bytes, size_t length, uint64_t seed);
void hash_text(const struct hash128 *hash, char text[HASH_TEXT_BYTES]);

/* How many blocks a range of `bytes` bytes has. */
static inline uint64_t hash_block_count(uint64_t bytes)
{
	return bytes / HASH_BLOCK_BYTES + (bytes % HASH_BLOCK_BYTES != 0);
}

/* Hashes block `index` of the `bytes` bytes at `base`. */
struct hash128 hash_block(const void *base, uint64_t bytes, uint64_t index);

/* Hashes all blocks of [base, base + bytes) with up to `threads` threads (0: one per online processor) into
 * blocks[hash_block_count(bytes)] and returns the hash over them. */
struct hash128 hash_range(const void *base, uint64_t bytes, struct hash128 *blocks, unsigned threads);

/* The content hash of an open file of `bytes` bytes, read with pread by up to `threads` threads. `cancel` (or NULL) is
 * looked at before each block. 0 or a negative errno; -ENODATA when the file is shorter, -ECANCELED. */
int hash_file(int fd, uint64_t bytes, unsigned threads, const atomic_bool *cancel, struct hash128 *content);

/* A running XXH3, for hashing in slices: the manifest's checksum, and the hash over a segment's block hashes. */
struct checksum;
struct checksum *checksum_new(void);
void checksum_free(struct checksum *sum);
void checksum_restart(struct checksum *sum);
void checksum_add(struct checksum *sum, const void *bytes, size_t length);
uint64_t checksum_value(const struct checksum *sum); /* XXH3-64 */
/* What hash_bytes gives for all that was added: XXH3's two widths differ in how they end alone. */
struct hash128 checksum_hash(const struct checksum *sum);

#endif
