/*
 * Each number of the format, wrong alone in an otherwise valid manifest: the refusal must name the field. What takes more
 * than one number to be wrong is in manifest_rules.c.
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
	{"segments[1].handle_bytes", SEGMENT(1, handle_bytes), 1},
	{"segments[1].handle_bytes", SEGMENT(1, handle_bytes), 63},
	{"segments[1].handle_bytes", SEGMENT(1, handle_bytes), 65},
	{"segments[1].handle_bytes", SEGMENT(1, handle_bytes), 129},
	{"segments[1].handle_bytes", SEGMENT(1, handle_kind), HANDLE_FD},
	{"segments[1].handle at", SEGMENT(1, handle[64]), 1},
	{"segments[1].handle at", SEGMENT(1, handle[127]), 1},
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
