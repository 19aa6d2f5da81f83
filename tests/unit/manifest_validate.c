/*
 * Each rule of the format, broken alone in an otherwise valid manifest: the refusal must name the field.
 *
 * A number that is wrong is a row of the first table. What takes more than one number is a function of the second.
 */
#include "manifest/validate.h"
#include "manifest/dtype.h"
#include "manifest/fd.h"
#include "tests/unit/leaks.h"
#include "tests/unit/manifest_sample.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

TestSuite(manifest_validate, .init = leaks_before, .fini = leaks_after);

/* The sample's tensors in their final order. */
enum {
	NORM,	    /* F32 [8] at 0 */
	EMBED,	    /* BF16 [16, 8] at 256, 256 bytes */
	TIED,	    /* an alias of EMBED, BF16 [64] at 256, 128 bytes */
	UNNAMED,    /* I64 [] at 512 */
	STRIDED,    /* F16 [4, 4] at 1024, 44 bytes */
	TRANSPOSED, /* U8 [3, 5] at 0 of segment 1 */
	FP4,	    /* F4 [2, 3, 4] at 16 of segment 1 */
	ACCENT,	    /* BOOL of rank 8 at 64 of segment 2 */
	EMPTY,	    /* F64 [0, 7] at 4096, the end of segment 2 */
};

#define HEADER -1
#define HEADER_FIELD(field)                                                                                            \
	HEADER, 0, offsetof(struct manifest_header, field), sizeof(((struct manifest_header *)0)->field)
#define SECTION_FIELD(section, field)                                                                                  \
	HEADER, 0, offsetof(struct manifest_header, sections[section].field),                                          \
		sizeof(((struct manifest_section *)0)->field)
#define FIELD(section, entry, type, field)                                                                             \
	section, entry, offsetof(struct type, field), sizeof(((struct type *)0)->field)
#define TENSOR(entry, field)	FIELD(SECTION_TENSORS, entry, manifest_tensor, field)
#define SEGMENT(entry, field)	FIELD(SECTION_SEGMENTS, entry, manifest_segment, field)
#define SOURCE(entry, field)	FIELD(SECTION_SOURCES, entry, manifest_source, field)
#define ATTRIBUTE(entry, field) FIELD(SECTION_ATTRIBUTES, entry, manifest_attribute, field)
#define KEY_FIELD(entry, field) FIELD(SECTION_FIELDS, entry, manifest_field, field)

static const struct {
	const char *expected; /* of the message */
	int section;
	uint32_t entry;
	size_t field;
	size_t bytes;
	uint64_t value;
} numbers[] = {
	{"header.magic at offset 0", HEADER_FIELD(magic[0]), 'X'},
	{"header.major at offset 8", HEADER_FIELD(major), 2},
	{"header.major at offset 8", HEADER_FIELD(major), 0},
	{"header.header_bytes at offset 12", HEADER_FIELD(header_bytes), 248},
	{"header.header_bytes at offset 12", HEADER_FIELD(header_bytes), 260},
	{"header.header_bytes at offset 12", HEADER_FIELD(header_bytes), 1 << 20},
	{"header.total_bytes at offset 16", HEADER_FIELD(total_bytes), 4096},
	{"header.incompatible", HEADER_FIELD(incompatible), 1},
	{"header.incompatible", HEADER_FIELD(incompatible), 1u << 31},
	{"header.visibility", HEADER_FIELD(visibility), 3},
	{"header.block_bytes", HEADER_FIELD(block_bytes), 4096},
	{"header.name", HEADER_FIELD(name.offset), UINT32_MAX},
	{"header.name", HEADER_FIELD(name.bytes), 5},
	{"header.name", HEADER_FIELD(name.bytes), UINT32_MAX},

	{"fields: entry_bytes 8", SECTION_FIELD(SECTION_FIELDS, entry_bytes), 8},
	{"tensors: entry_bytes 177", SECTION_FIELD(SECTION_TENSORS, entry_bytes), 177},
	{"tensors: entry_bytes 180", SECTION_FIELD(SECTION_TENSORS, entry_bytes), 180},
	{"index: entry_bytes 8", SECTION_FIELD(SECTION_INDEX, entry_bytes), 8},
	{"blocks: entry_bytes 24", SECTION_FIELD(SECTION_BLOCKS, entry_bytes), 24},
	{"strings: entry_bytes 2", SECTION_FIELD(SECTION_STRINGS, entry_bytes), 2},
	{"data: entry_bytes 0", SECTION_FIELD(SECTION_DATA, entry_bytes), 0},
	{"header.sections[0]", SECTION_FIELD(SECTION_FIELDS, offset), 264},
	{"header.sections[0]", SECTION_FIELD(SECTION_FIELDS, offset), 192},
	{"header.sections[0]", SECTION_FIELD(SECTION_FIELDS, offset), (uint64_t)1 << 63},
	{"header.sections[2]", SECTION_FIELD(SECTION_TENSORS, count), UINT32_MAX},
	{"header.sections[3]", SECTION_FIELD(SECTION_INDEX, count), 31},
	{"header.sections[1]", SECTION_FIELD(SECTION_FIELDS, count), 60},
	{"header.sections[0] at offset 112: 65 fields", SECTION_FIELD(SECTION_FIELDS, count), 65},
	{"header.total_bytes at offset 16", SECTION_FIELD(SECTION_DATA, count), 63},
	{"header.sections[3]", SECTION_FIELD(SECTION_TENSORS, count), 8},

	{"fields[0].name", KEY_FIELD(0, name.offset), UINT32_MAX},
	{"fields[0].value", KEY_FIELD(0, value.bytes), 9},
	{"fields[0].name", KEY_FIELD(0, name.bytes), 0},

	{"segments[0].bytes", SEGMENT(0, bytes), 0},
	{"segments[0].bytes", SEGMENT(0, bytes), (uint64_t)1 << 63},
	{"segments[0].device", SEGMENT(0, device.offset), 1 << 20},
	{"segments[0].handle_kind", SEGMENT(0, handle_kind), 0},
	{"segments[0].handle_kind", SEGMENT(0, handle_kind), 3},
	{"segments[0].handle_bytes", SEGMENT(0, handle_bytes), 1},
	{"segments[0].handle at", SEGMENT(0, handle[127]), 1},
	{"segments[1].handle_bytes", SEGMENT(1, handle_bytes), 0},
	{"segments[1].handle_bytes", SEGMENT(1, handle_bytes), 129},
	{"segments[1].handle at", SEGMENT(1, handle_bytes), 63},
	{"segments[0].first_block", SEGMENT(0, first_block), 1},
	{"segments[0].block_count", SEGMENT(0, block_count), 1},
	{"segments[0].block_count", SEGMENT(0, bytes), 4 << 20},
	{"segments[0].first_block", SEGMENT(0, first_block), UINT32_MAX},
	{"segments[1].first_block", SEGMENT(1, block_count), 1},
	{"segments[2].first_block", SEGMENT(2, first_block), 1},
	{"segments[2].hash", SEGMENT(2, hash[0]), 1},
	{"segments[0].hash", SEGMENT(0, hash[15]), 0x55},
	{"segments[0].hash", SECTION_BLOCKS, 1, 0, 1, 9},

	{"index: 10 slots are in use", SECTION_INDEX, 0, 0, 4, 9},
	{"index[0]", SECTION_INDEX, 0, 0, 4, 10},
	{"index[31]", SECTION_INDEX, 31, 0, 4, UINT32_MAX},

	{"tensors[0].name", TENSOR(NORM, name.offset), UINT32_MAX},
	{"tensors[0].dtype", TENSOR(NORM, dtype), 0},
	{"tensors[0].dtype", TENSOR(NORM, dtype), 23},
	{"tensors[0].rank", TENSOR(NORM, rank), 9},
	{"tensors[0].rank", TENSOR(NORM, rank), UINT32_MAX},
	{"tensors[1].shape[1]", TENSOR(EMBED, rank), 1},
	{"tensors[0].shape[0]", TENSOR(NORM, shape[0]), (uint64_t)1 << 63},
	{"tensors[0].shape[7]", TENSOR(NORM, shape[7]), 1},
	{"tensors[0].strides[0]", TENSOR(NORM, strides[0]), UINT64_MAX},
	{"tensors[0].strides[1]", TENSOR(NORM, strides[1]), 1},
	{"tensors[0].bytes", TENSOR(NORM, shape[0]), 9},
	{"tensors[0].bytes", TENSOR(NORM, shape[0]), 7},
	{"tensors[0].bytes", TENSOR(NORM, shape[0]), 0},
	{"tensors[0].bytes", TENSOR(NORM, shape[0]), INT64_MAX},
	{"tensors[0].bytes", TENSOR(NORM, bytes), 31},
	{"tensors[0].bytes", TENSOR(NORM, bytes), 33},
	{"tensors[0].bytes", TENSOR(NORM, dtype), IPCC_DTYPE_F64},
	{"tensors[0].bytes", TENSOR(NORM, dtype), IPCC_DTYPE_F16},
	{"tensors[4].bytes", TENSOR(STRIDED, bytes), 43},
	{"tensors[4].bytes", TENSOR(STRIDED, strides[0]), 7},
	{"tensors[4].bytes", TENSOR(STRIDED, strides[0]), INT64_MAX},
	{"tensors[6].bytes", TENSOR(FP4, bytes), 11},
	{"tensors[6].bytes", TENSOR(FP4, bytes), 13},
	{"tensors[8].offset", TENSOR(EMPTY, bytes), 8},
	{"tensors[0].segment", TENSOR(NORM, segment), 3},
	{"tensors[1].segment", TENSOR(NORM, segment), 1},
	{"tensors[0].flags", TENSOR(NORM, flags), 8},
	{"tensors[0].flags", TENSOR(NORM, flags), 1u << 31 | IPCC_TENSOR_PARAMETER},
	{"tensors[0].reserved", TENSOR(NORM, reserved), 1},
	{"tensors[0].offset", TENSOR(NORM, offset), 2},
	{"tensors[3].offset", TENSOR(UNNAMED, offset), 516},
	{"tensors[3].offset", TENSOR(UNNAMED, offset), 504},
	{"tensors[3].offset", TENSOR(UNNAMED, offset), 5 << 20},
	{"tensors[3].offset", TENSOR(UNNAMED, offset), (uint64_t)0 - 8},
	{"tensors[1].offset", TENSOR(NORM, offset), 512},
	{"tensors[3].offset", TENSOR(UNNAMED, bytes), UINT64_MAX},
	{"tensors[8].offset", TENSOR(EMPTY, offset), 4104},
	{"tensors[2].alias_of", TENSOR(TIED, alias_of), 2},
	{"tensors[2].alias_of", TENSOR(TIED, alias_of), 0},
	{"tensors[2].alias_of", TENSOR(TIED, alias_of), 3},
	{"tensors[2].alias_of", TENSOR(TIED, alias_of), 9},
	{"tensors[2].alias_of", TENSOR(TIED, alias_of), FP4},
	{"tensors[2].alias_of", TENSOR(TIED, offset), 386},
	{"tensors[2].alias_of", TENSOR(TIED, flags), IPCC_TENSOR_PARAMETER},
	{"tensors[1].alias_of", TENSOR(EMBED, alias_of), 1},
	{"tensors[1].alias_of", TENSOR(EMBED, flags), IPCC_TENSOR_ALIAS},

	{"sources[0].name", SOURCE(0, name.offset), UINT32_MAX},
	{"sources[0].name", SOURCE(0, name.bytes), 0},
	{"sources[1].hashed", SOURCE(1, hashed), 2},
	{"sources[1].hash at", SOURCE(1, hashed), 0},
	{"sources[0].hash at", SOURCE(0, hash[3]), 1},
	{"sources[0].reserved", SOURCE(0, reserved), 1},

	{"attributes[0].name", ATTRIBUTE(0, name.offset), UINT32_MAX},
	{"attributes[0].name", ATTRIBUTE(0, name.bytes), 0},
	{"attributes[1].type", ATTRIBUTE(1, type.bytes), 15},
	{"attributes[1].offset", ATTRIBUTE(1, offset), 64},
	{"attributes[1].offset", ATTRIBUTE(1, bytes), 8},
	{"attributes[1].offset", ATTRIBUTE(1, offset), UINT64_MAX},
};

static void assert_refused(struct sample *s, const char *expected)
{
	struct ipcc_error err = {0};

	sample_reseal(s->bytes, s->length);
	cr_assert_eq(manifest_validate(s->bytes, s->length, &err), IPCC_INVALID, "accepted, but should say: %s",
		     expected);
	const char *where = strstr(err.message, expected);
	cr_assert_not_null(where, "expected \"%s\" in: %s", expected, err.message);
	cr_assert_not_null(strstr(err.message, " at offset "), "%s", err.message);
	cr_assert_eq(manifest_validate(s->bytes, s->length, NULL), IPCC_INVALID);
}

Test(manifest_validate, the_sample_is_valid_and_as_this_file_expects_it)
{
	struct sample s;

	sample_init(&s);
	cr_assert_eq(manifest_validate(s.bytes, s.length, NULL), 0);
	cr_assert_eq(sample_tensor_number(&s, "model.norm"), NORM);
	cr_assert_eq(sample_tensor_number(&s, "model.embed"), EMBED);
	cr_assert_eq(sample_tensor_number(&s, "model.tied"), TIED);
	cr_assert_eq(sample_tensor_number(&s, ""), UNNAMED);
	cr_assert_eq(sample_tensor_number(&s, "model.strided"), STRIDED);
	cr_assert_eq(sample_tensor_number(&s, "model.transposed"), TRANSPOSED);
	cr_assert_eq(sample_tensor_number(&s, "model.fp4"), FP4);
	cr_assert_eq(sample_tensor_number(&s, "h\xc3\xa9t\xc3\xa9"), ACCENT);
	cr_assert_eq(sample_tensor_number(&s, "model.empty"), EMPTY);
	cr_assert_eq(manifest_count(&s.m, SECTION_INDEX), 32);
	sample_fini(&s);
}

Test(manifest_validate, each_wrong_number_is_refused_and_named)
{
	struct sample s;

	sample_init(&s);
	for (size_t i = 0; i < array_length(numbers); i++) {
		uint8_t *at =
			numbers[i].section == HEADER ? s.bytes : sample_entry(&s, numbers[i].section, numbers[i].entry);
		le64 value = le64_make(numbers[i].value);
		uint8_t before[8];

		at += numbers[i].field;
		memcpy(before, at, numbers[i].bytes);
		memcpy(at, &value, numbers[i].bytes);
		cr_assert_neq(memcmp(at, before, numbers[i].bytes), 0, "row %zu changes nothing", i);
		assert_refused(&s, numbers[i].expected);
		memcpy(at, before, numbers[i].bytes);
	}
	sample_reseal(s.bytes, s.length);
	cr_assert_eq(manifest_validate(s.bytes, s.length, NULL), 0, "everything was put back");
	sample_fini(&s);
}

/* The offset in the message is that of the field. */
Test(manifest_validate, a_refusal_tells_the_byte_offset)
{
	struct sample s;
	char expected[64];

	sample_init(&s);
	struct manifest_tensor *t = sample_entry(&s, SECTION_TENSORS, STRIDED);
	t->shape[2] = le64_make(4711);
	snprintf(expected, sizeof(expected), "manifest: tensors[4].shape[2] at offset %td: 4711; the limit is 0",
		 (uint8_t *)&t->shape[2] - s.bytes);
	assert_refused(&s, expected);
	sample_fini(&s);
}

/* Overwrites the text of a string in place. */
static void spoil(struct sample *s, struct manifest_string string, const char *text)
{
	cr_assert_leq(strlen(text), le32_get(string.bytes));
	memcpy((char *)manifest_text(&s->m, string), text, strlen(text));
}

#define RAW(type, section, entry) ((struct manifest_##type *)sample_entry(s, section, entry))

static void name_is_not_utf8(struct sample *s)
{
	spoil(s, RAW(tensor, SECTION_TENSORS, NORM)->name, "\xff");
}
static void name_has_nul(struct sample *s)
{
	*(char *)manifest_text(&s->m, RAW(tensor, SECTION_TENSORS, NORM)->name) = '\0';
}
static void name_lost_its_nul(struct sample *s)
{
	struct manifest_string name = RAW(tensor, SECTION_TENSORS, NORM)->name;
	((char *)manifest_text(&s->m, name))[le32_get(name.bytes)] = 'x';
}
static void name_is_not_in_the_index(struct sample *s)
{
	spoil(s, RAW(tensor, SECTION_TENSORS, NORM)->name, "x");
}
static void name_is_there_twice(struct sample *s)
{
	RAW(tensor, SECTION_TENSORS, EMBED)->name = RAW(tensor, SECTION_TENSORS, NORM)->name;
}
static void index_has_another_seed(struct sample *s)
{
	((struct manifest_header *)s->bytes)->index_seed = le64_make(4711);
}
static void index_lost_a_tensor(struct sample *s)
{
	le32 *slot = sample_entry(s, SECTION_INDEX, 0);
	while (le32_get(*slot) == 0)
		slot++;
	*slot = le32_make(0);
}
static void model_name_has_a_control_character(struct sample *s)
{
	spoil(s, ((struct manifest_header *)s->bytes)->name, "\x1b");
}
static void field_name_is_upper_case(struct sample *s)
{
	spoil(s, RAW(field, SECTION_FIELDS, 0)->name, "M");
}
static void field_value_has_a_control_character(struct sample *s)
{
	spoil(s, RAW(field, SECTION_FIELDS, 0)->value, "\t");
}
static void fields_are_not_sorted(struct sample *s)
{
	spoil(s, RAW(field, SECTION_FIELDS, 0)->name, "z");
}
static void fields_are_equal(struct sample *s)
{
	RAW(field, SECTION_FIELDS, 1)->name = RAW(field, SECTION_FIELDS, 0)->name;
}
static void device_has_a_space(struct sample *s)
{
	spoil(s, RAW(segment, SECTION_SEGMENTS, 1)->device, "GPU 1");
}
static void source_is_absolute(struct sample *s)
{
	spoil(s, RAW(source, SECTION_SOURCES, 0)->name, "/");
}
static void source_has_a_dot(struct sample *s)
{
	spoil(s, RAW(source, SECTION_SOURCES, 0)->name, ".");
}
static void source_goes_up(struct sample *s)
{
	spoil(s, RAW(source, SECTION_SOURCES, 1)->name, "aa/../bb");
}
static void source_has_an_empty_part(struct sample *s)
{
	spoil(s, RAW(source, SECTION_SOURCES, 1)->name, "aa//bb");
}
static void source_is_a_folder(struct sample *s)
{
	struct manifest_string name = RAW(source, SECTION_SOURCES, 1)->name;
	((char *)manifest_text(&s->m, name))[le32_get(name.bytes) - 1] = '/';
}
static void sources_are_not_sorted(struct sample *s)
{
	spoil(s, RAW(source, SECTION_SOURCES, 0)->name, "z");
}
static void sources_are_equal(struct sample *s)
{
	RAW(source, SECTION_SOURCES, 1)->name = RAW(source, SECTION_SOURCES, 0)->name;
}
static void attributes_are_not_sorted(struct sample *s)
{
	spoil(s, RAW(attribute, SECTION_ATTRIBUTES, 0)->name, "z");
}
static void attribute_type_is_not_utf8(struct sample *s)
{
	spoil(s, RAW(attribute, SECTION_ATTRIBUTES, 1)->type, "\xc3(");
}
static void attribute_name_is_not_utf8(struct sample *s)
{
	spoil(s, RAW(attribute, SECTION_ATTRIBUTES, 1)->name, "\xc3(");
}
static void gap_is_not_zero(struct sample *s)
{
	const struct manifest *m = &s->m;
	((uint8_t *)m->sections[SECTION_SEGMENTS])[-1] = 1;
	cr_assert_lt(m->sections[SECTION_FIELDS] + 3 * sizeof(struct manifest_field), m->sections[SECTION_SEGMENTS],
		     "there is a gap");
}
static void alias_has_more_bytes_than_its_owner(struct sample *s)
{
	struct manifest_tensor *t = RAW(tensor, SECTION_TENSORS, TIED);
	t->shape[0] = le64_make(129);
	t->bytes = le64_make(258);
}
static void tensor_overlaps_the_one_before(struct sample *s)
{
	struct manifest_tensor *t = RAW(tensor, SECTION_TENSORS, NORM);
	t->shape[0] = le64_make(65);
	t->bytes = le64_make(260);
}
static void alias_is_none_but_overlaps(struct sample *s)
{
	struct manifest_tensor *t = RAW(tensor, SECTION_TENSORS, TIED);
	t->flags = le32_make(0);
	t->alias_of = le32_make(0);
}
static void hashed_segments_overlap_in_blocks(struct sample *s)
{
	struct manifest_segment *third = RAW(segment, SECTION_SEGMENTS, 2);
	third->block_count = le32_make(1);
	memcpy(third->hash, "x", 1);
}
static void hashed_segment_has_blocks_behind_the_end(struct sample *s)
{
	struct manifest_segment *third = RAW(segment, SECTION_SEGMENTS, 2);
	third->block_count = le32_make(1);
	third->first_block = le32_make(2);
}
static void blocks_belong_to_nobody(struct sample *s)
{
	struct manifest_segment *first = RAW(segment, SECTION_SEGMENTS, 0);
	first->block_count = le32_make(0);
	memset(first->hash, 0, sizeof(first->hash));
}
static void a_dense_tensor_of_strange_strides(struct sample *s)
{
	struct manifest_tensor *t = RAW(tensor, SECTION_TENSORS, TRANSPOSED);
	t->strides[1] = le64_make(4);
}

Test(manifest_validate, each_broken_rule_is_refused_and_named)
{
	static const struct {
		const char *expected;
		void (*spoil)(struct sample *s);
	} rules[] = {
		{"tensors[0].name", name_is_not_utf8},
		{"tensors[0].name", name_has_nul},
		{"tensors[0].name", name_lost_its_nul},
		{"tensors[0].name", name_is_not_in_the_index},
		{"tensors[1].name", name_is_there_twice},
		{".name at offset", index_has_another_seed},
		{"index: 8 slots are in use for 9 tensors", index_lost_a_tensor},
		{"header.name", model_name_has_a_control_character},
		{"fields[0].name", field_name_is_upper_case},
		{"fields[0].value", field_value_has_a_control_character},
		{"fields[1].name", fields_are_not_sorted},
		{"fields[1].name", fields_are_equal},
		{"segments[1].device", device_has_a_space},
		{"sources[0].name", source_is_absolute},
		{"sources[1].name", source_goes_up},
		{"sources[1].name", source_has_an_empty_part},
		{"sources[1].name", source_is_a_folder},
		{"sources[0].name", source_has_a_dot},
		{"sources[1].name", sources_are_not_sorted},
		{"sources[1].name", sources_are_equal},
		{"attributes[1].name", attributes_are_not_sorted},
		{"attributes[1].name", attribute_name_is_not_utf8},
		{"attributes[1].type", attribute_type_is_not_utf8},
		{"header.sections[1] at offset 304: segments: the gap", gap_is_not_zero},
		{"tensors[2].alias_of", alias_has_more_bytes_than_its_owner},
		{"tensors[1].offset", tensor_overlaps_the_one_before},
		{"tensors[2].offset", alias_is_none_but_overlaps},
		{"segments[2].first_block", hashed_segments_overlap_in_blocks},
		{"segments[2].block_count", hashed_segment_has_blocks_behind_the_end},
		{"header.sections[5]", blocks_belong_to_nobody},
		{"tensors[5].bytes", a_dense_tensor_of_strange_strides},
	};

	for (size_t i = 0; i < array_length(rules); i++) {
		struct sample s;
		sample_init(&s);
		rules[i].spoil(&s);
		assert_refused(&s, rules[i].expected);
		sample_fini(&s);
	}
}

Test(manifest_validate, damage_anywhere_shows_in_the_checksum)
{
	struct ipcc_error err;
	struct sample s;

	sample_init(&s);
	for (size_t at = sizeof(struct manifest_header); at < s.length; at++) {
		s.bytes[at] ^= 0x10;
		cr_assert_eq(manifest_validate(s.bytes, s.length, &err), IPCC_INVALID);
		cr_assert_not_null(strstr(err.message, "header.checksum at offset 24"), "at %zu: %s", at, err.message);
		s.bytes[at] ^= 0x10;
	}
	sample_fini(&s);
}

Test(manifest_validate, the_brokers_stamp_is_not_the_validators_business)
{
	struct sample s;

	sample_init(&s);
	struct manifest_header *h = (struct manifest_header *)s.bytes;
	memset(h->instance, 0xff, sizeof(h->instance));
	h->generation = h->created_ns = le64_make(UINT64_MAX);
	h->owner_uid = h->publisher_pid = h->visible_gid = le32_make(UINT32_MAX);
	h->visibility = le32_make(IPCC_VISIBLE_ALL);
	sample_reseal(s.bytes, s.length);
	cr_assert_eq(manifest_validate(s.bytes, s.length, NULL), 0);
	sample_fini(&s);
}

/* Builds what must be valid. */
static void assert_valid(struct builder *b)
{
	struct ipcc_error err = {0};
	cleanup_free void *bytes = NULL;
	size_t length;

	cr_assert_eq(builder_finish(b, &bytes, &length, &err), 0, "%s", err.message);
	builder_free(b);
}

Test(manifest_validate, more_than_252_segments_are_refused)
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

Test(manifest_validate, a_key_that_is_too_large_is_refused)
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

Test(manifest_validate, an_index_over_no_tensor_has_no_slots)
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

Test(manifest_validate, tensors_without_elements_may_lie_anywhere)
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

Test(manifest_validate, views_with_gaps_broadcasts_and_half_bytes_are_valid)
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

Test(manifest_validate, an_alias_may_be_any_part_of_its_owner)
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
