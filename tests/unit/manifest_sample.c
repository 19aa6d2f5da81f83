/* See manifest_sample.h. */
#include "tests/unit/manifest_sample.h"

#include "manifest/dtype.h"
#include "manifest/validate.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#define SHAPE(...)                                                                                                     \
	(const uint64_t[])                                                                                             \
	{                                                                                                              \
		__VA_ARGS__                                                                                            \
	}

struct ipcc_tensor dense_tensor(const char *name, uint32_t dtype, uint32_t rank, const uint64_t *shape, uint64_t offset)
{
	struct ipcc_tensor t = {
		.name = name, .dtype = dtype, .rank = rank, .offset = offset, .flags = IPCC_TENSOR_PARAMETER};
	memcpy(t.shape, shape, rank * sizeof(*shape));
	dtype_dense_strides(shape, rank, t.strides);
	cr_assert(dtype_dense_bytes(dtype, shape, rank, &t.bytes));
	return t;
}

struct builder *builder_with_segment(uint64_t bytes)
{
	struct builder *b = builder_new();
	struct ipcc_segment segment = {.device = "host", .bytes = bytes, .handle_kind = HANDLE_FD};
	cr_assert_not_null(b);
	cr_assert_eq(builder_add_segment(b, &segment, NULL, NULL), 0);
	return b;
}

static void add_segments(struct builder *b)
{
	struct hash128 blocks[2] = {{{1, 2, 3}}, {{4, 5, 6}}};
	struct ipcc_segment hashed = {.device = "host", .bytes = 5 << 20, .handle_kind = HANDLE_FD, .block_count = 2};
	struct ipcc_segment legacy = {.device = "GPU-5a1f2b3c-0001-0002-0003-000000000004",
				      .bytes = 65536,
				      .handle_kind = HANDLE_LEGACY,
				      .handle_bytes = 64};
	struct ipcc_segment unhashed = {
		.device = "GPU-5a1f2b3c-0001-0002-0003-000000000005", .bytes = 4096, .handle_kind = HANDLE_FD};

	memset(legacy.handle, 0xab, legacy.handle_bytes);
	cr_assert_eq(builder_add_segment(b, &hashed, blocks, NULL), 0);
	cr_assert_eq(builder_add_segment(b, &legacy, NULL, NULL), 0);
	cr_assert_eq(builder_add_segment(b, &unhashed, NULL, NULL), 0);
}

static void add_tensors(struct builder *b)
{
	struct ipcc_tensor list[] = {
		/* Added out of order, and the alias before its owner. */
		dense_tensor("model.tied", IPCC_DTYPE_BF16, 1, SHAPE(64), 256),
		dense_tensor("model.embed", IPCC_DTYPE_BF16, 2, SHAPE(16, 8), 256),
		dense_tensor("model.norm", IPCC_DTYPE_F32, 1, SHAPE(8), 0),
		dense_tensor("", IPCC_DTYPE_I64, 0, SHAPE(0), 512),
		dense_tensor("model.strided", IPCC_DTYPE_F16, 2, SHAPE(4, 4), 1024),
		dense_tensor("model.transposed", IPCC_DTYPE_U8, 2, SHAPE(3, 5), 0),
		dense_tensor("model.fp4", IPCC_DTYPE_F4, 3, SHAPE(2, 3, 4), 16),
		dense_tensor("model.empty", IPCC_DTYPE_F64, 2, SHAPE(0, 7), 4096),
		dense_tensor("h\xc3\xa9t\xc3\xa9", IPCC_DTYPE_BOOL, 8, SHAPE(1, 1, 2, 1, 1, 2, 1, 1), 64),
	};

	list[0].flags = IPCC_TENSOR_ALIAS | IPCC_TENSOR_PARAMETER;
	list[0].alias_of = 1;
	list[4].strides[0] = 6; /* rows of 4 in memory of 6 */
	list[4].bytes = (3 * 6 + 4) * 2;
	list[5].strides[0] = 1;
	list[5].strides[1] = 3;
	list[5].segment = list[6].segment = SAMPLE_LEGACY;
	list[7].segment = list[8].segment = SAMPLE_UNHASHED;
	list[8].flags = IPCC_TENSOR_BUFFER;
	for (size_t i = 0; i < array_length(list); i++)
		cr_assert_eq(builder_add_tensor(b, &list[i], NULL), 0);
}

static void add_others(struct builder *b)
{
	uint8_t bulk[57] = "bulk";
	struct ipcc_source first = {.name = "model.safetensors",
				    .device = 1,
				    .inode = 2,
				    .bytes = 3,
				    .mtime_ns = 4,
				    .ctime_ns = 5,
				    .stat_ns = 6,
				    .hashed = 1,
				    .hash = {7}};
	struct ipcc_source second = {.name = "a/config.json", .bytes = 9};
	struct ipcc_attribute json = {"vllm.config", "application/json", "{\"a\":1}", 7};
	struct ipcc_attribute binary = {"bulk", "", bulk, sizeof(bulk)};

	cr_assert_eq(builder_set_name(b, "sample", NULL), 0);
	cr_assert_eq(builder_add_field(b, "revision", "main", NULL), 0);
	cr_assert_eq(builder_add_field(b, "model", "org/sample", NULL), 0);
	cr_assert_eq(builder_add_field(b, "rank", "", NULL), 0);
	cr_assert_eq(builder_add_source(b, &first, NULL), 0);
	cr_assert_eq(builder_add_source(b, &second, NULL), 0);
	cr_assert_eq(builder_add_attribute(b, &json, NULL), 0);
	cr_assert_eq(builder_add_attribute(b, &binary, NULL), 0);
}

void sample_init(struct sample *sample)
{
	struct builder *b = builder_new();
	struct ipcc_error err;
	void *bytes;

	cr_assert_not_null(b);
	add_segments(b);
	add_tensors(b);
	add_others(b);
	int code = builder_finish(b, &bytes, &sample->length, &err);
	cr_assert_eq(code, 0, "%s", err.message);
	builder_free(b);
	sample->bytes = bytes;
	cr_assert_eq(manifest_init(&sample->m, bytes, sample->length, true, NULL), 0);
}

void sample_fini(struct sample *sample)
{
	free(sample->bytes);
}

void sample_reseal(void *bytes, size_t length)
{
	uint64_t checksum = 0;
	cr_assert_eq(manifest_checksum(bytes, length, &checksum, NULL), 0);
	((struct manifest_header *)bytes)->checksum = le64_make(checksum);
}

void assert_refused(struct sample *s, const char *expected)
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

void *sample_entry(struct sample *sample, enum manifest_section_id section, uint32_t i)
{
	const void *entry = manifest_entry(&sample->m, section, i);
	cr_assert_not_null(entry);
	return (void *)entry;
}

uint32_t sample_tensor_number(const struct sample *sample, const char *name)
{
	int64_t found = manifest_find(&sample->m, name);
	cr_assert_geq(found, 0, "no tensor \"%s\"", name);
	return (uint32_t)found;
}

static uint64_t touch(const void *bytes, uint64_t length)
{
	const volatile uint8_t *p = bytes;
	uint64_t sum = 0;
	for (uint64_t i = 0; i < length; i++)
		sum += p[i];
	return sum;
}

static uint64_t touch_text(const char *text)
{
	return touch(text, strlen(text) + 1);
}

/* In arithmetic that cannot overflow, and not the code under test: the last element against the segment's end. */
static void check_last_element(const struct manifest *m, const struct ipcc_tensor *t)
{
	const struct manifest_segment *segment = manifest_entry(m, SECTION_SEGMENTS, t->segment);
	unsigned __int128 last = 0;

	cr_assert_not_null(segment);
	for (uint32_t d = 0; d < t->rank; d++) {
		if (t->shape[d] == 0)
			return;
		last += (unsigned __int128)(t->shape[d] - 1) * t->strides[d];
	}
	unsigned __int128 end = (unsigned __int128)t->offset * 8 + (last + 1) * dtype_bits(t->dtype);
	cr_assert(end <= (unsigned __int128)le64_get(segment->bytes) * 8, "\"%s\" reaches beyond its segment", t->name);
}

static uint64_t walk_tensors(const struct manifest *m)
{
	struct ipcc_tensor t;
	uint64_t sum = 0;

	for (uint32_t i = 0; i < manifest_count(m, SECTION_TENSORS); i++) {
		if (manifest_tensor(m, i, &t, NULL) != 0)
			continue;
		check_last_element(m, &t);
		sum += touch_text(t.name) + (uint64_t)manifest_find(m, t.name);
		if (t.flags & IPCC_TENSOR_ALIAS)
			sum += manifest_entry(m, SECTION_TENSORS, t.alias_of) != NULL;
	}
	return sum + (uint64_t)manifest_find(m, "no such tensor");
}

static uint64_t walk_segments(const struct manifest *m)
{
	struct ipcc_segment s;
	uint64_t sum = 0;

	for (uint32_t i = 0; i < manifest_count(m, SECTION_SEGMENTS); i++) {
		if (manifest_segment(m, i, &s, NULL) != 0)
			continue;
		sum += touch_text(s.device) + touch(s.handle, s.handle_bytes);
		const struct hash128 *blocks = manifest_blocks(m, i);
		if (blocks != NULL)
			sum += touch(blocks, (uint64_t)s.block_count * sizeof(*blocks));
	}
	return sum;
}

uint64_t walk_manifest(const struct manifest *m)
{
	struct ipcc_source source;
	struct ipcc_attribute attribute;
	struct ipcc_field field;
	struct key key;
	uint64_t sum = walk_tensors(m) + walk_segments(m) + touch_text(manifest_name(m));

	for (uint32_t i = 0; i < manifest_count(m, SECTION_SOURCES); i++)
		if (manifest_source(m, i, &source, NULL) == 0)
			sum += touch_text(source.name);
	for (uint32_t i = 0; i < manifest_count(m, SECTION_ATTRIBUTES); i++)
		if (manifest_attribute(m, i, &attribute, NULL) == 0)
			sum += touch_text(attribute.name) + touch_text(attribute.type) +
			       touch(attribute.data, attribute.bytes);
	for (uint32_t i = 0; i < manifest_count(m, SECTION_FIELDS); i++)
		if (manifest_field(m, i, &field, NULL) == 0)
			sum += touch_text(field.name) + touch_text(field.value);
	if (manifest_key(m, &key, NULL) == 0) {
		sum += touch(key.packed, key.packed_bytes);
		key_fini(&key);
	}
	return sum;
}
