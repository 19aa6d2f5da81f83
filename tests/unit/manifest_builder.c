/* What goes into a builder comes out of the reader. */
#include "manifest/builder_state.h"
#include "manifest/dtype.h"
#include "manifest/fd.h"
#include "manifest/validate.h"
#include "tests/unit/leaks.h"
#include "tests/unit/manifest_sample.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

TestSuite(manifest_builder, .init = leaks_before, .fini = leaks_after);

static void finish(struct builder *b, struct sample *out)
{
	struct ipcc_error err = {0};
	void *bytes;

	cr_assert_eq(builder_finish(b, &bytes, &out->length, &err), 0, "%s", err.message);
	builder_free(b);
	out->bytes = bytes;
	cr_assert_eq((uintptr_t)bytes % MANIFEST_ALIGNMENT, 0);
	cr_assert_eq(manifest_init(&out->m, bytes, out->length, true, &err), 0, "%s", err.message);
	cr_assert_eq(manifest_validate(bytes, out->length, &err), 0, "%s", err.message);
}

static void assert_not_finished(struct builder *b, int code, const char *reason)
{
	struct ipcc_error err = {0};
	void *bytes = b;
	size_t length = 4711;

	cr_assert_eq(builder_finish(b, &bytes, &length, &err), code, "%s", err.message);
	cr_assert_not_null(strstr(err.message, reason), "%s", err.message);
	cr_assert_eq(bytes, b, "an output is untouched on failure");
	cr_assert_eq(length, 4711);
	builder_free(b);
}

Test(manifest_builder, an_empty_model_is_a_model)
{
	struct sample s;

	finish(builder_new(), &s);
	for (int i = 0; i < SECTION_STRINGS; i++)
		cr_assert_eq(manifest_count(&s.m, i), 0);
	cr_assert_str_eq(manifest_name(&s.m), "");
	cr_assert_eq(manifest_find(&s.m, ""), -1);
	cr_assert_null(manifest_entry(&s.m, SECTION_TENSORS, 0));
	sample_fini(&s);
}

Test(manifest_builder, a_segment_without_tensors_is_a_model)
{
	struct sample s;

	finish(builder_with_segment(4096), &s);
	cr_assert_eq(manifest_count(&s.m, SECTION_SEGMENTS), 1);
	sample_fini(&s);
}

Test(manifest_builder, freeing_nothing_is_allowed)
{
	builder_free(NULL);
	validator_free(NULL);
}

Test(manifest_builder, tensors_of_every_type_come_back)
{
	const uint64_t shape[] = {3, 8};
	struct builder *b = builder_with_segment(1 << 20);
	struct ipcc_tensor t;
	struct sample s;

	for (uint32_t dtype = IPCC_DTYPE_BOOL; dtype <= IPCC_DTYPE_U64; dtype++) {
		t = dense_tensor(dtype_name(dtype), dtype, 2, shape, dtype * 256);
		t.flags = dtype % 2 ? IPCC_TENSOR_PARAMETER : IPCC_TENSOR_BUFFER;
		cr_assert_eq(builder_add_tensor(b, &t, NULL), 0);
	}
	finish(b, &s);
	cr_assert_eq(manifest_count(&s.m, SECTION_TENSORS), 22);
	for (uint32_t dtype = IPCC_DTYPE_BOOL; dtype <= IPCC_DTYPE_U64; dtype++) {
		cr_assert_eq(manifest_tensor(&s.m, sample_tensor_number(&s, dtype_name(dtype)), &t, NULL), 0);
		cr_assert_str_eq(t.name, dtype_name(dtype));
		cr_assert_eq(t.dtype, dtype);
		cr_assert_eq(t.rank, 2);
		cr_assert_arr_eq(t.shape, ((uint64_t[8]){3, 8}), sizeof(t.shape));
		cr_assert_arr_eq(t.strides, ((uint64_t[8]){8, 1}), sizeof(t.strides));
		cr_assert_eq(t.offset, dtype * 256);
		cr_assert_eq(t.bytes, 24 * dtype_bits(dtype) / 8);
		cr_assert_eq(t.flags, dtype % 2 ? IPCC_TENSOR_PARAMETER : IPCC_TENSOR_BUFFER);
	}
	sample_fini(&s);
}

Test(manifest_builder, tensors_are_sorted_by_place_and_aliases_follow_their_owner)
{
	struct ipcc_tensor tied, owner;
	struct sample s;

	sample_init(&s);
	uint32_t owner_number = sample_tensor_number(&s, "model.embed"),
		 tied_number = sample_tensor_number(&s, "model.tied");
	cr_assert_eq(owner_number, 1, "after model.norm at 0");
	cr_assert_eq(tied_number, 2, "at the same place as its owner, and added before it");
	cr_assert_eq(manifest_tensor(&s.m, owner_number, &owner, NULL), 0);
	cr_assert_eq(manifest_tensor(&s.m, tied_number, &tied, NULL), 0);
	cr_assert_eq(tied.alias_of, owner_number);
	cr_assert_eq(tied.offset, owner.offset);
	sample_fini(&s);
}

Test(manifest_builder, segments_come_back_with_handles_and_hashes)
{
	struct ipcc_segment segment;
	struct sample s;

	sample_init(&s);
	cr_assert_eq(manifest_count(&s.m, SECTION_SEGMENTS), SAMPLE_SEGMENTS);
	cr_assert_eq(manifest_segment(&s.m, SAMPLE_HASHED, &segment, NULL), 0);
	cr_assert_str_eq(segment.device, "host");
	cr_assert_eq(segment.bytes, 5 << 20);
	cr_assert_eq(segment.handle_kind, HANDLE_FD);
	cr_assert_eq(segment.block_count, 2);
	const struct hash128 *blocks = manifest_blocks(&s.m, SAMPLE_HASHED);
	cr_assert_not_null(blocks);
	cr_assert_arr_eq(blocks[1].bytes, "\x04\x05\x06\0", 4);
	struct hash128 over = hash_bytes(blocks, 2 * sizeof(*blocks));
	cr_assert_arr_eq(segment.hash, over.bytes, HASH_BYTES);

	cr_assert_eq(manifest_segment(&s.m, SAMPLE_LEGACY, &segment, NULL), 0);
	cr_assert_eq(segment.handle_kind, HANDLE_LEGACY);
	cr_assert_eq(segment.handle_bytes, 64);
	cr_assert_eq(segment.handle[63], 0xab);
	cr_assert_eq(segment.handle[64], 0);
	cr_assert_null(manifest_blocks(&s.m, SAMPLE_LEGACY));
	cr_assert_null(manifest_blocks(&s.m, SAMPLE_SEGMENTS));
	sample_fini(&s);
}

Test(manifest_builder, sources_and_attributes_come_back_sorted_by_name)
{
	struct ipcc_source source;
	struct ipcc_attribute attribute;
	struct sample s;

	sample_init(&s);
	cr_assert_str_eq(manifest_name(&s.m), "sample");
	cr_assert_eq(manifest_source(&s.m, 0, &source, NULL), 0);
	cr_assert_str_eq(source.name, "a/config.json");
	cr_assert_eq(source.hashed, 0);
	cr_assert_eq(manifest_source(&s.m, 1, &source, NULL), 0);
	cr_assert_str_eq(source.name, "model.safetensors");
	cr_assert(source.device == 1 && source.inode == 2 && source.bytes == 3);
	cr_assert(source.mtime_ns == 4 && source.ctime_ns == 5 && source.stat_ns == 6);
	cr_assert(source.hashed == 1 && source.hash[0] == 7);
	cr_assert_eq(manifest_attribute(&s.m, 0, &attribute, NULL), 0);
	cr_assert_str_eq(attribute.name, "bulk");
	cr_assert_eq(attribute.bytes, 57);
	cr_assert_arr_eq(attribute.data, "bulk\0", 5);
	cr_assert_eq(manifest_attribute(&s.m, 1, &attribute, NULL), 0);
	cr_assert_str_eq(attribute.type, "application/json");
	cr_assert_arr_eq(attribute.data, "{\"a\":1}", 7);
	sample_fini(&s);
}

Test(manifest_builder, the_key_comes_back)
{
	const struct ipcc_field fields[] = {{"model", "org/sample"}, {"rank", ""}, {"revision", "main"}};
	struct key want, have;
	struct sample s;

	sample_init(&s);
	cr_assert_eq(key_init(&want, fields, 3, NULL), 0);
	cr_assert_eq(manifest_key(&s.m, &have, NULL), 0);
	cr_assert(key_equal(&want, &have));
	key_fini(&want);
	key_fini(&have);
	sample_fini(&s);
}

Test(manifest_builder, there_is_no_entry_behind_the_last)
{
	struct ipcc_tensor t;
	struct ipcc_segment segment;
	struct ipcc_source source;
	struct ipcc_attribute attribute;
	struct ipcc_field field;
	struct ipcc_error err;
	struct sample s;

	sample_init(&s);
	cr_assert_eq(manifest_tensor(&s.m, 9, &t, &err), IPCC_INVALID);
	cr_assert_str_eq(err.message, "manifest: there is no tensors[9]: 9 entries");
	cr_assert_eq(manifest_segment(&s.m, 3, &segment, &err), IPCC_INVALID);
	cr_assert_eq(manifest_source(&s.m, UINT32_MAX, &source, &err), IPCC_INVALID);
	cr_assert_eq(manifest_attribute(&s.m, 2, &attribute, &err), IPCC_INVALID);
	cr_assert_eq(manifest_field(&s.m, 3, &field, &err), IPCC_INVALID);
	sample_fini(&s);
}

static void add_bytes(struct builder *b, const char *name, uint64_t offset, uint64_t bytes)
{
	struct ipcc_tensor t = dense_tensor(name, IPCC_DTYPE_U8, 1, (uint64_t[]){bytes}, offset);
	cr_assert_eq(builder_add_tensor(b, &t, NULL), 0);
}

Test(manifest_builder, equal_content_gives_equal_bytes_in_any_order_of_adding)
{
	struct sample s[2];

	for (int reverse = 0; reverse < 2; reverse++) {
		struct builder *b = builder_with_segment(4096);
		for (int i = 0; i < 10; i++) {
			int number = reverse ? 9 - i : i;
			char name[16];
			snprintf(name, sizeof(name), "n%d", number);
			struct ipcc_source source = {.name = name};
			struct ipcc_attribute attribute = {name, "", name, 2};
			add_bytes(b, name, (uint64_t)number * 256, 100);
			cr_assert_eq(builder_add_field(b, name, name, NULL), 0);
			cr_assert_eq(builder_add_source(b, &source, NULL), 0);
			cr_assert_eq(builder_add_attribute(b, &attribute, NULL), 0);
		}
		if (reverse)
			cr_assert_eq(builder_set_name(b, "changed my mind", NULL), 0);
		cr_assert_eq(builder_set_name(b, "name", NULL), 0);
		finish(b, &s[reverse]);
	}
	cr_assert_eq(s[0].length, s[1].length);
	cr_assert_arr_eq(s[0].bytes, s[1].bytes, s[0].length);
	sample_fini(&s[0]);
	sample_fini(&s[1]);
}

Test(manifest_builder, an_addition_that_fails_leaves_no_trace)
{
	char name[MANIFEST_MAX_TENSOR_NAME + 2];
	struct builder *b = builder_with_segment(4096);
	struct ipcc_tensor t = dense_tensor("good", IPCC_DTYPE_U8, 1, (uint64_t[]){1}, 0), bad = t;
	struct ipcc_attribute attribute = {name, "", "", 0}, no_data = {"n", "", NULL, 1};
	struct ipcc_attribute typeless = {"typeless", NULL, "", 0};
	struct ipcc_source source = {.name = NULL};
	struct ipcc_error err;
	struct sample s;

	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	bad.name = name;
	cr_assert_eq(builder_add_tensor(b, &bad, &err), IPCC_INVALID);
	cr_assert_not_null(strstr(err.message, "4096"), "%s", err.message);
	bad.name = NULL;
	cr_assert_eq(builder_add_tensor(b, &bad, NULL), IPCC_USAGE);
	bad.name = "rank";
	bad.rank = 9;
	cr_assert_eq(builder_add_tensor(b, &bad, NULL), IPCC_INVALID);
	cr_assert_eq(builder_set_name(b, name, NULL), IPCC_INVALID);
	cr_assert_eq(builder_add_field(b, "Bad", "v", NULL), IPCC_INVALID);
	cr_assert_eq(builder_add_field(b, "n", "\n", NULL), IPCC_INVALID);
	cr_assert_eq(builder_add_field(b, NULL, "v", NULL), IPCC_USAGE);
	cr_assert_eq(builder_add_source(b, &source, NULL), IPCC_USAGE);
	cr_assert_eq(builder_add_attribute(b, &attribute, NULL), IPCC_INVALID);
	cr_assert_eq(builder_add_attribute(b, &no_data, NULL), IPCC_USAGE);
	cr_assert_eq(builder_add_attribute(b, &typeless, NULL), IPCC_USAGE);
	cr_assert_eq(builder_add_tensor(b, &t, NULL), 0);
	finish(b, &s);
	cr_assert_eq(manifest_count(&s.m, SECTION_TENSORS), 1);
	cr_assert_eq(manifest_count(&s.m, SECTION_ATTRIBUTES), 0);
	cr_assert_eq(manifest_count(&s.m, SECTION_STRINGS), sizeof("good") + sizeof("host") + sizeof(""));
	sample_fini(&s);
}

Test(manifest_builder, segments_with_impossible_handles_or_hashes_are_refused)
{
	struct builder *b = builder_new();
	struct hash128 block = {{0}};
	struct ipcc_segment s = {.device = "host", .bytes = 1, .handle_kind = HANDLE_LEGACY, .handle_bytes = 129};

	cr_assert_eq(builder_add_segment(b, &s, NULL, NULL), IPCC_INVALID);
	s.handle_bytes = 1;
	s.block_count = 1;
	cr_assert_eq(builder_add_segment(b, &s, NULL, NULL), IPCC_USAGE, "hashes are announced but missing");
	s.block_count = 0;
	cr_assert_eq(builder_add_segment(b, &s, &block, NULL), IPCC_USAGE, "hashes are given but not announced");
	s.device = NULL;
	cr_assert_eq(builder_add_segment(b, &s, NULL, NULL), IPCC_USAGE);
	builder_free(b);
}

Test(manifest_builder, fields_and_segments_have_a_limit)
{
	struct builder *b = builder_new();
	struct ipcc_segment segment = {.device = "host", .bytes = 1, .handle_kind = HANDLE_FD};
	char name[16];

	for (int i = 0; i < MANIFEST_MAX_FIELDS; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		cr_assert_eq(builder_add_field(b, name, "", NULL), 0);
	}
	cr_assert_eq(builder_add_field(b, "more", "", NULL), IPCC_REFUSED);
	for (int i = 0; i < MANIFEST_MAX_SEGMENTS; i++)
		cr_assert_eq(builder_add_segment(b, &segment, NULL, NULL), 0);
	cr_assert_eq(builder_add_segment(b, &segment, NULL, NULL), IPCC_REFUSED);
	struct sample s;
	finish(b, &s);
	cr_assert_eq(manifest_count(&s.m, SECTION_SEGMENTS), MANIFEST_MAX_SEGMENTS);
	sample_fini(&s);
}

Test(manifest_builder, two_tensors_of_one_name_are_refused)
{
	struct builder *b = builder_with_segment(4096);

	add_bytes(b, "same", 0, 1);
	add_bytes(b, "other", 256, 1);
	add_bytes(b, "same", 512, 1);
	assert_not_finished(b, IPCC_INVALID, "two tensors of the name \"same\"");
}

Test(manifest_builder, two_fields_sources_or_attributes_of_one_name_are_refused)
{
	struct ipcc_source source = {.name = "f"};
	struct ipcc_attribute attribute = {"a", "", "", 0};
	struct builder *b = builder_new();

	cr_assert_eq(builder_add_field(b, "n", "1", NULL), 0);
	cr_assert_eq(builder_add_field(b, "n", "2", NULL), 0);
	assert_not_finished(b, IPCC_INVALID, "fields[1].name");
	b = builder_new();
	cr_assert_eq(builder_add_source(b, &source, NULL), 0);
	cr_assert_eq(builder_add_source(b, &source, NULL), 0);
	assert_not_finished(b, IPCC_INVALID, "sources[1].name");
	b = builder_new();
	cr_assert_eq(builder_add_attribute(b, &attribute, NULL), 0);
	cr_assert_eq(builder_add_attribute(b, &attribute, NULL), 0);
	assert_not_finished(b, IPCC_INVALID, "attributes[1].name");
}

Test(manifest_builder, an_index_too_full_for_short_probes_is_not_taken)
{
	enum { COUNT = 129 };
	struct manifest_tensor tensors[COUNT] = {0};
	uint8_t strings[COUNT] = {0};
	le32 slots[128];
	uint64_t seed;

	/* One name more than there are slots: no seed can help, and the caller doubles. */
	for (uint32_t i = 0; i < COUNT; i++) {
		strings[i] = (uint8_t)i;
		tensors[i].name = (struct manifest_string){le32_make(i), le32_make(1)};
	}
	cr_assert_eq(builder_index_fill(tensors, COUNT, strings, slots, 128, &seed, NULL), 1);
	cr_assert_eq(builder_index_fill(tensors, 64, strings, slots, 128, &seed, NULL), 0);
	cr_assert_eq(builder_index_slots(0), 0);
	cr_assert_eq(builder_index_slots(1), 2);
	cr_assert_eq(builder_index_slots(64), 128);
	cr_assert_eq(builder_index_slots(65), 256);
}

Test(manifest_builder, overlapping_tensors_are_refused)
{
	struct builder *b = builder_with_segment(4096);

	add_bytes(b, "first", 0, 257);
	add_bytes(b, "second", 256, 1);
	assert_not_finished(b, IPCC_INVALID, "tensors[1].offset");
}

Test(manifest_builder, an_alias_of_nothing_is_refused)
{
	struct builder *b = builder_with_segment(4096);
	struct ipcc_tensor t = dense_tensor("alias", IPCC_DTYPE_U8, 1, (uint64_t[]){1}, 0);

	t.flags = IPCC_TENSOR_ALIAS;
	t.alias_of = 1;
	cr_assert_eq(builder_add_tensor(b, &t, NULL), 0);
	assert_not_finished(b, IPCC_INVALID, "tensors[0].alias_of");
}

Test(manifest_builder, a_tensor_needs_its_segment)
{
	struct builder *b = builder_new();

	add_bytes(b, "lost", 0, 1);
	assert_not_finished(b, IPCC_INVALID, "segments: none");
	b = builder_with_segment(4096);
	add_bytes(b, "beyond", 4096, 1);
	assert_not_finished(b, IPCC_INVALID, "tensors[0].offset");
}

Test(manifest_builder, a_manifest_is_64_mebibytes_at_most)
{
	const size_t half = MANIFEST_MAX_BYTES / 2;
	struct builder *b = builder_new();
	cleanup_free void *data = calloc(1, half);
	struct ipcc_attribute attribute = {"a", "", data, half};
	struct ipcc_error err;

	cr_assert_eq(builder_add_attribute(b, &attribute, NULL), 0);
	attribute.name = "b";
	cr_assert_eq(builder_add_attribute(b, &attribute, NULL), 0, "the data alone just fits");
	attribute = (struct ipcc_attribute){"c", "", data, 1};
	cr_assert_eq(builder_add_attribute(b, &attribute, &err), IPCC_REFUSED);
	cr_assert_not_null(strstr(err.message, "67108864"), "%s", err.message);
	assert_not_finished(b, IPCC_REFUSED, "67108864");
}

static double seconds_since(const struct timespec *start)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)(now.tv_sec - start->tv_sec) + (double)(now.tv_nsec - start->tv_nsec) / 1e9;
}

Test(manifest_builder, a_hundred_thousand_tensors_are_built_and_found, .timeout = 120)
{
	enum { COUNT = 100000 };
	struct builder *b = builder_with_segment((uint64_t)COUNT * 256);
	struct timespec start;
	struct sample s;
	char name[64];

	clock_gettime(CLOCK_MONOTONIC, &start);
	for (unsigned i = 0; i < COUNT; i++) {
		unsigned number = (unsigned)((uint64_t)i * 7919 % COUNT); /* no order to profit from */
		snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.%u.weight", number / 100, number % 100);
		add_bytes(b, name, (uint64_t)number * 256, 200);
	}
	double added = seconds_since(&start);
	void *bytes;
	struct ipcc_error err;
	cr_assert_eq(builder_finish(b, &bytes, &s.length, &err), 0, "%s", err.message);
	builder_free(b);
	double finished = seconds_since(&start);
	s.bytes = bytes;
	cr_assert_eq(manifest_init(&s.m, bytes, s.length, true, NULL), 0);
	cr_assert_eq(manifest_count(&s.m, SECTION_INDEX), 262144, "at most half full");
	double opened = seconds_since(&start);
	for (unsigned i = 0; i < COUNT; i++) {
		snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.%u.weight", i / 100, i % 100);
		cr_assert_eq(manifest_find(&s.m, name), i);
		name[0] = 'n';
		cr_assert_eq(manifest_find(&s.m, name), -1);
	}
	double found = seconds_since(&start);
	cr_log_info("adding %.1f ms, finishing %.1f ms, opening %.2f ms, a lookup %.0f ns, %zu bytes", added * 1e3,
		    (finished - added) * 1e3, (opened - finished) * 1e3, (found - opened) / COUNT / 2 * 1e9, s.length);
	sample_fini(&s);
}
