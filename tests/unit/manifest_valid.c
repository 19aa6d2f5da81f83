/* What is unusual and valid, and what is too much. */
#include "manifest/validate.h"
#include "manifest/dtype.h"
#include "manifest/fd.h"
#include "tests/unit/leaks.h"
#include "tests/unit/manifest_sample.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

TestSuite(manifest_valid, .init = leaks_before, .fini = leaks_after);

/* Builds what must be valid. */
static void assert_valid(struct builder *b)
{
	struct ipcc_error err = {0};
	cleanup_free void *bytes = NULL;
	size_t length;

	cr_assert_eq(builder_finish(b, &bytes, &length, &err), 0, "%s", err.message);
	builder_free(b);
}

Test(manifest_valid, more_than_252_segments_are_refused)
{
	struct builder *b = builder_new();
	cleanup_free void *data = calloc(1, 1 << 16);
	struct ipcc_attribute attribute = {"a", "", data, 1 << 16};
	struct sample s;
	void *bytes;

	cr_assert_eq(builder_add_attribute(b, &attribute, NULL), 0);
	cr_assert_eq(builder_finish(b, &bytes, &s.length, NULL), 0);
	builder_free(b);
	s.bytes = bytes;
	((struct manifest_header *)bytes)->sections[SECTION_SEGMENTS].count = le32_make(MANIFEST_MAX_SEGMENTS + 1);
	assert_refused(&s, "header.sections[1] at offset 128: 253 segments");
	sample_fini(&s);
}

Test(manifest_valid, a_key_that_is_too_large_is_refused)
{
	struct builder *b = builder_new();
	struct ipcc_error err;
	char value[1001] = "", name[16];
	void *bytes;
	size_t length;

	memset(value, 'v', sizeof(value) - 1);
	for (int i = 0; i < 17; i++) {
		snprintf(name, sizeof(name), "n%02d", i);
		cr_assert_eq(builder_add_field(b, name, value, NULL), 0);
	}
	cr_assert_eq(builder_finish(b, &bytes, &length, &err), IPCC_INVALID);
	cr_assert_not_null(strstr(err.message, "fields[16].value"), "%s", err.message);
	builder_free(b);
}

Test(manifest_valid, an_index_over_no_tensor_has_no_slots)
{
	struct builder *b = builder_new();
	struct sample s;
	void *bytes;

	cr_assert_eq(builder_finish(b, &bytes, &s.length, NULL), 0);
	builder_free(b);
	/* Sixteen empty slots, where the sections behind the index begin now. */
	s.bytes = calloc(1, s.length + 64);
	memcpy(s.bytes, bytes, s.length);
	free(bytes);
	s.length += 64;
	struct manifest_header *h = (struct manifest_header *)s.bytes;
	for (int i = SECTION_SOURCES; i < SECTION_COUNT; i++)
		h->sections[i].offset = le64_make(le64_get(h->sections[i].offset) + 64);
	h->sections[SECTION_INDEX].count = le32_make(16);
	h->total_bytes = le64_make(s.length);
	assert_refused(&s, "index: 16 slots for no tensor");
	sample_fini(&s);
}

Test(manifest_valid, tensors_without_elements_may_lie_anywhere)
{
	static const uint64_t offsets[] = {0, 128, 256, 4096};
	struct builder *b = builder_with_segment(4096);
	struct ipcc_tensor t = dense_tensor("full", IPCC_DTYPE_U8, 1, (uint64_t[]){256}, 0);

	cr_assert_eq(builder_add_tensor(b, &t, NULL), 0);
	for (size_t i = 0; i < array_length(offsets); i++) {
		char name[2] = {(char)('a' + i), '\0'};
		t = dense_tensor(name, IPCC_DTYPE_F64, 2, (uint64_t[]){0, (uint64_t)1 << 40}, offsets[i]);
		cr_assert_eq(builder_add_tensor(b, &t, NULL), 0);
	}
	t = dense_tensor("behind", IPCC_DTYPE_U8, 1, (uint64_t[]){256}, 256);
	cr_assert_eq(builder_add_tensor(b, &t, NULL), 0);
	assert_valid(b);
}

Test(manifest_valid, views_with_gaps_broadcasts_and_half_bytes_are_valid)
{
	struct builder *b = builder_with_segment(4096);
	struct ipcc_tensor broadcast = {.name = "broadcast",
					.dtype = IPCC_DTYPE_F32,
					.rank = 2,
					.shape = {1000, 4},
					.strides = {0, 1},
					.bytes = 16};
	struct ipcc_tensor padded = {.name = "padded",
				     .dtype = IPCC_DTYPE_BF16,
				     .rank = 2,
				     .shape = {4, 3},
				     .strides = {4, 1},
				     .bytes = 32,
				     .offset = 256};
	struct ipcc_tensor half = {.name = "half",
				   .dtype = IPCC_DTYPE_F4,
				   .rank = 1,
				   .shape = {3},
				   .strides = {1},
				   .bytes = 2,
				   .offset = 512};
	struct ipcc_tensor vast = {.name = "vast",
				   .dtype = IPCC_DTYPE_U8,
				   .rank = 3,
				   .strides = {0, 0, 0},
				   .bytes = 2,
				   .shape = {(uint64_t)1 << 40, (uint64_t)1 << 40, 2},
				   .offset = 768};

	cr_assert_eq(builder_add_tensor(b, &broadcast, NULL), 0);
	cr_assert_eq(builder_add_tensor(b, &padded, NULL), 0, "the padding behind the last row may belong to it");
	cr_assert_eq(builder_add_tensor(b, &half, NULL), 0);
	cr_assert_eq(builder_add_tensor(b, &vast, NULL), 0);
	assert_valid(b);
}

Test(manifest_valid, an_alias_may_be_any_part_of_its_owner)
{
	struct builder *b = builder_with_segment(4096);
	struct ipcc_tensor owner = dense_tensor("owner", IPCC_DTYPE_F32, 1, (uint64_t[]){64}, 256);
	struct ipcc_tensor alias = dense_tensor("tail", IPCC_DTYPE_U8, 1, (uint64_t[]){3}, 509);

	alias.flags |= IPCC_TENSOR_ALIAS;
	cr_assert_eq(builder_add_tensor(b, &owner, NULL), 0);
	cr_assert_eq(builder_add_tensor(b, &alias, NULL), 0);
	alias = dense_tensor("behind", IPCC_DTYPE_U8, 1, (uint64_t[]){1}, 512);
	cr_assert_eq(builder_add_tensor(b, &alias, NULL), 0);
	assert_valid(b);
}
