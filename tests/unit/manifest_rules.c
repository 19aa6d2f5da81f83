/* Each rule of the format that takes more than one number to break: the refusal must name the field. */
#include "manifest/validate.h"
#include "manifest/dtype.h"
#include "manifest/fd.h"
#include "tests/unit/leaks.h"
#include "tests/unit/manifest_sample.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

TestSuite(manifest_rules, .init = leaks_before, .fini = leaks_after);

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
static void host_memory_has_a_legacy_handle(struct sample *s)
{
	RAW(segment, SECTION_SEGMENTS, SAMPLE_LEGACY)->device = RAW(segment, SECTION_SEGMENTS, 0)->device;
}
static void two_segments_have_the_same_handle(struct sample *s)
{
	struct manifest_segment *from = RAW(segment, SECTION_SEGMENTS, SAMPLE_LEGACY),
				*to = RAW(segment, SECTION_SEGMENTS, SAMPLE_LEGACY + 1);
	to->handle_kind = from->handle_kind;
	to->handle_bytes = from->handle_bytes;
	memcpy(to->handle, from->handle, sizeof(to->handle));
}
static void a_dense_tensor_of_strange_strides(struct sample *s)
{
	struct manifest_tensor *t = RAW(tensor, SECTION_TENSORS, TRANSPOSED);
	t->strides[1] = le64_make(4);
}

Test(manifest_rules, each_broken_rule_is_refused_and_named)
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
		{"segments[1].handle_kind", host_memory_has_a_legacy_handle},
		{"segments[2].handle at", two_segments_have_the_same_handle},
	};

	for (size_t i = 0; i < array_length(rules); i++) {
		struct sample s;
		sample_init(&s);
		rules[i].spoil(&s);
		assert_refused(&s, rules[i].expected);
		sample_fini(&s);
	}
}
