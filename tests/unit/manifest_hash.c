/* Hashes, against values computed by another implementation of XXH3 (python-xxhash, which agrees with xxhsum). */
#include "manifest/hash.h"
#include "manifest/bytes.h"
#include "manifest/fd.h"
#include "tests/unit/leaks.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(manifest_hash, .init = leaks_before, .fini = leaks_after);

#define BIG (2 * HASH_BLOCK_BYTES + 12345)

static const struct {
	uint64_t bytes;
	const char *content;
	const char *blocks[3];
} known[] = {
	{0, "99aa06d3014798d86001c324468d497f", {0}},
	{1, "d4bb14079dface434a09d02574c507f7", {"495b62073ef70ca44c5cca45d0f4811f"}},
	{HASH_BLOCK_BYTES - 1, "8594e63f963eb5d68e073a649d4fbf40", {"7b40aed0b50441bbcedcc7297141927e"}},
	{HASH_BLOCK_BYTES, "6195e684a83fc9422e892d240085bd1a", {"0833823f4167c2001fe5af49c5747582"}},
	{HASH_BLOCK_BYTES + 1,
	 "7bae55679ec06bc490923ff15c9de115",
	 {"0833823f4167c2001fe5af49c5747582", "687ce3c51fa614ed7fe0f41f6d1802c5"}},
	{BIG,
	 "630c57f9956a9da0c7f1f787f68f4f72",
	 {"0833823f4167c2001fe5af49c5747582", "cf7f30ab33eced079f5d74f30f3602ca", "b3330fac935baaf7787cefd5dfd3f76d"}},
};

static uint8_t *pattern(uint64_t bytes)
{
	uint8_t *p = malloc(bytes == 0 ? 1 : bytes);
	cr_assert_not_null(p);
	for (uint64_t i = 0; i < bytes; i++)
		p[i] = (uint8_t)(i * 131 + (i >> 8) * 17 + (i >> 22) * 29 + 7);
	return p;
}

static void assert_hash(struct hash128 hash, const char *expected)
{
	char text[HASH_TEXT_BYTES];
	hash_text(&hash, text);
	cr_assert_str_eq(text, expected);
}

static int pattern_file(uint64_t bytes)
{
	cleanup_free uint8_t *p = pattern(bytes);
	int fd = memfd_new("pattern", bytes);
	cr_assert_geq(fd, 0);
	cr_assert_eq(fd_write_exact(fd, p, bytes, 0), 0);
	return fd;
}

Test(manifest_hash, hashes_of_bytes_are_xxh3_of_128_bits)
{
	cleanup_free uint8_t *p = pattern(300);

	assert_hash(hash_bytes("", 0), "99aa06d3014798d86001c324468d497f");
	assert_hash(hash_bytes("abc", 3), "06b05ab6733a618578af5f94892f3950");
	assert_hash(hash_bytes(p, 300), "3899751167151f5fffcc0e829792b138");
}

Test(manifest_hash, hashes_of_names_are_seeded_xxh3_of_64_bits)
{
	static const char name[] = "model.layers.0.weight";

	cr_assert_eq(hash_name(name, sizeof(name) - 1, 0), UINT64_C(0xddc612212de32d21));
	cr_assert_eq(hash_name(name, sizeof(name) - 1, 1), UINT64_C(0x98461969c733836d));
	cr_assert_eq(hash_name(name, sizeof(name) - 1, UINT64_C(0x0123456789abcdef)), UINT64_C(0x96e773773c3df4a0));
}

Test(manifest_hash, a_range_has_as_many_blocks_as_it_needs)
{
	cr_assert_eq(hash_block_count(0), 0);
	cr_assert_eq(hash_block_count(1), 1);
	cr_assert_eq(hash_block_count(HASH_BLOCK_BYTES), 1);
	cr_assert_eq(hash_block_count(HASH_BLOCK_BYTES + 1), 2);
	cr_assert_eq(hash_block_count(UINT64_MAX), UINT64_MAX / HASH_BLOCK_BYTES + 1);
}

Test(manifest_hash, content_hashes_are_the_same_for_any_number_of_threads)
{
	static const unsigned threads[] = {0, 1, 2, 3, 64, 1000};

	for (size_t i = 0; i < array_length(known); i++) {
		cleanup_free uint8_t *p = pattern(known[i].bytes);
		for (size_t t = 0; t < array_length(threads); t++) {
			struct hash128 blocks[3] = {0};
			assert_hash(hash_range(p, known[i].bytes, blocks, threads[t]), known[i].content);
			for (uint64_t b = 0; b < hash_block_count(known[i].bytes); b++)
				assert_hash(blocks[b], known[i].blocks[b]);
		}
	}
}

Test(manifest_hash, one_block_can_be_hashed_alone)
{
	cleanup_free uint8_t *p = pattern(BIG);

	for (uint64_t b = 0; b < 3; b++)
		assert_hash(hash_block(p, BIG, b), known[5].blocks[b]);
}

Test(manifest_hash, a_file_hashes_as_its_bytes_in_memory_do)
{
	for (size_t i = 0; i < array_length(known); i++) {
		cleanup_fd int fd = pattern_file(known[i].bytes);
		for (unsigned threads = 0; threads < 4; threads++) {
			struct hash128 content;
			cr_assert_eq(hash_file(fd, known[i].bytes, threads, NULL, &content), 0);
			assert_hash(content, known[i].content);
		}
	}
}

Test(manifest_hash, a_file_that_is_shorter_or_unreadable_is_an_error)
{
	cleanup_fd int fd = pattern_file(HASH_BLOCK_BYTES + 10);
	struct hash128 content = {{77}};

	cr_assert_eq(hash_file(fd, HASH_BLOCK_BYTES + 11, 2, NULL, &content), -ENODATA);
	cr_assert_eq(hash_file(fd, 3 * HASH_BLOCK_BYTES, 2, NULL, &content), -ENODATA);
	cr_assert_eq(hash_file(-1, 10, 1, NULL, &content), -EBADF);
	cr_assert_eq(content.bytes[0], 77);
}

static void *no_thread(void *nothing)
{
	return nothing;
}

/* 0: as it should be. */
static int hash_without_threads(const uint8_t *p)
{
	struct rlimit none = {0, 0};
	struct hash128 blocks[3];
	char text[HASH_TEXT_BYTES];
	pthread_t thread;

	/* The limit does not hold root. */
	if (setrlimit(RLIMIT_NPROC, &none) != 0 || (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0))
		return 1;
	if (pthread_create(&thread, NULL, no_thread, NULL) == 0)
		return 2;
	struct hash128 content = hash_range(p, BIG, blocks, 4);
	hash_text(&content, text);
	return strcmp(text, known[5].content) == 0 ? 0 : 3;
}

Test(manifest_hash, without_further_threads_the_caller_hashes_alone)
{
	cleanup_free uint8_t *p = pattern(BIG);
	int status;

	/* In a child, because what it gives up does not come back. */
	pid_t child = fork();
	if (child == 0)
		_exit(hash_without_threads(p));
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_assert(WIFEXITED(status));
	cr_assert_eq(WEXITSTATUS(status), 0, "step %d", WEXITSTATUS(status));
}

Test(manifest_hash, a_running_hash_equals_that_of_the_whole)
{
	cleanup_free uint8_t *p = pattern(300);
	struct checksum *sum = checksum_new();

	cr_assert_not_null(sum);
	cr_assert_eq(checksum_value(sum), UINT64_C(0x2d06800538d394c2));
	for (size_t at = 0; at < 300; at += 100)
		checksum_add(sum, p + at, 100);
	cr_assert_eq(checksum_value(sum), UINT64_C(0xffcc0e829792b138));
	assert_hash(checksum_hash(sum), "3899751167151f5fffcc0e829792b138");
	checksum_restart(sum);
	checksum_add(sum, "abc", 3);
	assert_hash(checksum_hash(sum), "06b05ab6733a618578af5f94892f3950");
	checksum_free(sum);
}

Test(manifest_hash, a_running_hash_of_128_bits_holds_for_every_length)
{
	cleanup_free uint8_t *p = pattern(5000);
	struct checksum *sum = checksum_new();

	for (size_t length = 0; length <= 5000; length += 7) {
		checksum_restart(sum);
		checksum_add(sum, p, length / 3);
		checksum_add(sum, p + length / 3, length - length / 3);
		struct hash128 running = checksum_hash(sum), whole = hash_bytes(p, length);
		cr_assert_arr_eq(running.bytes, whole.bytes, HASH_BYTES, "%zu bytes", length);
	}
	checksum_free(sum);
}
