/* The validator in slices: its states, and that no step is long, whatever the manifest. */
#include "manifest/validate.h"
#include "manifest/dtype.h"
#include "manifest/fd.h"
#include "tests/unit/leaks.h"
#include "tests/unit/manifest_sample.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

TestSuite(manifest_slices, .init = leaks_before, .fini = leaks_after);

Test(manifest_slices, a_validator_says_when_it_is_done_and_keeps_its_manifest)
{
	struct ipcc_error err = {0};
	enum validator_result result;
	struct sample s;

	sample_init(&s);
	struct validator *v = validator_new(s.bytes, s.length);
	cr_assert_not_null(v);
	while ((result = validator_step(v, &err)) == VALIDATOR_MORE)
		;
	cr_assert_eq(result, VALIDATOR_DONE);
	cr_assert_eq(validator_step(v, &err), VALIDATOR_DONE);
	cr_assert_eq(walk_manifest(validator_manifest(v)), walk_manifest(&s.m));
	validator_free(v);
	sample_fini(&s);
}

Test(manifest_slices, there_is_no_step_after_a_refusal)
{
	struct ipcc_error err = {0};
	struct sample s;

	sample_init(&s);
	s.bytes[0] = 'X';
	struct validator *v = validator_new(s.bytes, s.length);
	cr_assert_eq(validator_step(v, &err), VALIDATOR_ERROR);
	cr_assert_eq(err.code, IPCC_INVALID);
	cr_assert_eq(validator_step(v, &err), VALIDATOR_ERROR);
	cr_assert_eq(err.code, IPCC_USAGE);
	validator_free(v);
	sample_fini(&s);
}

struct pace {
	unsigned steps;
	double total_ms;
	double longest_ms;
};

/* CPU time, so that other processes of the machine do not count. */
static double cpu_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static enum validator_result run_paced(const void *bytes, size_t length, struct pace *pace, struct ipcc_error *err)
{
	struct validator *v = validator_new(bytes, length);
	enum validator_result result;

	*pace = (struct pace){0};
	do {
		double before = cpu_ms();
		result = validator_step(v, err);
		double took = cpu_ms() - before;
		pace->steps++;
		pace->total_ms += took;
		if (took > pace->longest_ms)
			pace->longest_ms = took;
	} while (result == VALIDATOR_MORE);
	validator_free(v);
	return result;
}

/* Loose bounds: sanitizers, coverage and busy machines slow everything down; the figures are in the log. */
static void assert_pace(const struct pace *pace, const char *what)
{
	cr_log_info("%s: %u steps, %.1f ms in all, the longest %.3f ms", what, pace->steps, pace->total_ms,
		    pace->longest_ms);
	cr_assert_gt(pace->steps, 20);
	cr_assert_lt(pace->longest_ms, 100);
}

Test(manifest_slices, a_hundred_thousand_tensors_are_checked_in_slices, .timeout = 120)
{
	enum { COUNT = 100000 };
	struct builder *b = builder_with_segment((uint64_t)COUNT * 8);
	struct ipcc_error err = {0};
	struct pace pace;
	char name[64];
	void *bytes;
	size_t length;

	for (uint64_t i = 0; i < COUNT; i++) {
		snprintf(name, sizeof(name), "model.layers.%u.weight", (unsigned)i);
		struct ipcc_tensor t = dense_tensor(name, IPCC_DTYPE_I64, 0, (uint64_t[]){0}, i * 8);
		cr_assert_eq(builder_add_tensor(b, &t, NULL), 0);
	}
	cr_assert_eq(builder_finish(b, &bytes, &length, &err), 0, "%s", err.message);
	builder_free(b);
	cr_assert_eq(run_paced(bytes, length, &pace, &err), VALIDATOR_DONE);
	assert_pace(&pace, "100,000 tensors");
	free(bytes);
}

/* As large as it may be, each name as long as it may be and all different in the last byte only. */
Test(manifest_slices, the_longest_names_do_not_make_a_step_long, .timeout = 120)
{
	enum { COUNT = 12000 };
	struct builder *b = builder_with_segment((uint64_t)COUNT * 8);
	static char name[MANIFEST_MAX_TENSOR_NAME + 1];
	struct ipcc_error err = {0};
	struct pace pace;
	void *bytes;
	size_t length;

	memset(name, 'n', MANIFEST_MAX_TENSOR_NAME);
	for (uint64_t i = 0; i < COUNT; i++) {
		char number[9];
		snprintf(number, sizeof(number), "%08u", (unsigned)i);
		memcpy(name + MANIFEST_MAX_TENSOR_NAME - 8, number, 8);
		struct ipcc_tensor t = dense_tensor(name, IPCC_DTYPE_I64, 0, (uint64_t[]){0}, i * 8);
		cr_assert_eq(builder_add_tensor(b, &t, NULL), 0);
	}
	cr_assert_eq(builder_finish(b, &bytes, &length, &err), 0, "%s", err.message);
	builder_free(b);
	cr_assert_eq(run_paced(bytes, length, &pace, &err), VALIDATOR_DONE);
	assert_pace(&pace, "12,000 names of 4096 bytes");

	/* An index in which one lookup meets as many other names as possible: all slots in one run. */
	struct manifest_header *h = bytes;
	le32 *slots = (le32 *)((uint8_t *)bytes + le64_get(h->sections[SECTION_INDEX].offset));
	uint32_t slot_count = le32_get(h->sections[SECTION_INDEX].count);
	for (uint32_t i = 0; i < slot_count; i++)
		slots[i] = le32_make(i < COUNT ? COUNT - i : 0);
	sample_reseal(bytes, length);
	cr_assert_eq(run_paced(bytes, length, &pace, &err), VALIDATOR_ERROR);
	cr_assert_not_null(strstr(err.message, "the index does not find"), "%s", err.message);
	assert_pace(&pace, "an index of one long run");
	free(bytes);
}

Test(manifest_slices, the_hashes_of_a_vast_segment_are_checked_in_slices, .timeout = 120)
{
	const uint32_t count = 3 << 20; /* 12 TiB in blocks of 4 MiB: 48 MiB of hashes */
	cleanup_free struct hash128 *blocks = calloc(count, sizeof(*blocks));
	struct ipcc_segment segment = {
		.device = "host", .bytes = count * HASH_BLOCK_BYTES, .handle_kind = HANDLE_FD, .block_count = count};
	struct builder *b = builder_new();
	struct ipcc_error err = {0};
	struct pace pace;
	void *bytes;
	size_t length;

	cr_assert_eq(builder_add_segment(b, &segment, blocks, NULL), 0);
	cr_assert_eq(builder_finish(b, &bytes, &length, &err), 0, "%s", err.message);
	builder_free(b);
	cr_assert_eq(run_paced(bytes, length, &pace, &err), VALIDATOR_DONE);
	assert_pace(&pace, "12 TiB of hashed blocks");
	free(bytes);
}
