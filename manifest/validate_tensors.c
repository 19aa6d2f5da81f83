/*
 * Tensors and their index.
 *
 * The index has as many used slots as there are tensors, each with a number in range, and looking up each tensor's name
 * finds that very tensor. So the index is complete, without duplicates, and all names are unique: a second tensor of
 * the same name would find the first.
 */
#include "manifest/dtype.h"
#include "manifest/validate_state.h"

#define KNOWN_FLAGS (IPCC_TENSOR_PARAMETER | IPCC_TENSOR_BUFFER | IPCC_TENSOR_ALIAS)

typedef const struct manifest_tensor raw_tensor;

int validate_slot(struct validator *v, uint32_t i, struct ipcc_error *err)
{
	const le32 *raw = manifest_entry(&v->m, SECTION_INDEX, i);
	uint32_t slot = le32_get(*raw);

	if (slot > v->m.counts[SECTION_TENSORS])
		return manifest_refuse(v->m.bytes, (struct place){"index", i, NULL, -1, raw}, err,
				       "tensor %u; there are %u", slot - 1, v->m.counts[SECTION_TENSORS]);
	v->slots_used += slot != 0;
	return 0;
}

int validate_counts(struct validator *v, bool *done, struct ipcc_error *err)
{
	const struct manifest *m = &v->m;
	uint32_t tensors = m->counts[SECTION_TENSORS];

	*done = true;
	if (v->slots_used != tensors)
		return manifest_refuse(m->bytes, IN_ARRAY(NULL, 0, m->header, sections, SECTION_INDEX), err,
				       "index: %u slots are in use for %u tensors", v->slots_used, tensors);
	if (tensors == 0 && m->counts[SECTION_INDEX] != 0)
		return manifest_refuse(m->bytes, IN_ARRAY(NULL, 0, m->header, sections, SECTION_INDEX), err,
				       "index: %u slots for no tensor", m->counts[SECTION_INDEX]);
	if (tensors > 0 && m->counts[SECTION_SEGMENTS] == 0)
		return manifest_refuse(m->bytes, IN_ARRAY(NULL, 0, m->header, sections, SECTION_SEGMENTS), err,
				       "segments: none, but %u tensors", tensors);
	return 0;
}

static int check_name(struct validator *v, uint32_t i, raw_tensor *raw, struct ipcc_error *err)
{
	struct place place = IN_ENTRY("tensors", i, raw, name);
	const char *name;

	int code =
		validate_text(v, place, raw->name, (struct text_rule){0, MANIFEST_MAX_TENSOR_NAME, false}, &name, err);
	if (code != 0)
		return code;
	int64_t found = manifest_probe(&v->m, name, le32_get(raw->name.bytes), &v->work);
	if (found < 0)
		return manifest_refuse(v->m.bytes, place, err, "the index does not find \"%s\"", name);
	if (found != i)
		return manifest_refuse(v->m.bytes, place, err, "tensors[%u] has the name \"%s\" too", (unsigned)found,
				       name);
	return 0;
}

/* dtype, and a shape that fits signed 64-bit arithmetic everywhere; unused places are 0. */
static int check_shape(struct validator *v, uint32_t i, raw_tensor *raw, struct ipcc_error *err)
{
	uint32_t rank = le32_get(raw->rank);

	if (dtype_bits(le32_get(raw->dtype)) == 0)
		return manifest_refuse(v->m.bytes, IN_ENTRY("tensors", i, raw, dtype), err, "%u is no dtype",
				       le32_get(raw->dtype));
	if (rank > MANIFEST_MAX_RANK)
		return manifest_refuse(v->m.bytes, IN_ENTRY("tensors", i, raw, rank), err, "%u; the limit is %d", rank,
				       MANIFEST_MAX_RANK);
	for (uint32_t d = 0; d < MANIFEST_MAX_RANK; d++) {
		uint64_t limit = d < rank ? INT64_MAX : 0;
		if (le64_get(raw->shape[d]) > limit)
			return manifest_refuse(v->m.bytes, IN_ARRAY("tensors", i, raw, shape, d), err,
					       "%llu; the limit is %llu", (unsigned long long)le64_get(raw->shape[d]),
					       (unsigned long long)limit);
		if (le64_get(raw->strides[d]) > limit)
			return manifest_refuse(v->m.bytes, IN_ARRAY("tensors", i, raw, strides, d), err,
					       "%llu; the limit is %llu", (unsigned long long)le64_get(raw->strides[d]),
					       (unsigned long long)limit);
	}
	return 0;
}

static bool view_is_dense(const struct ipcc_tensor *t, uint64_t view_bits)
{
	uint64_t elements = 1;
	for (uint32_t d = 0; d < t->rank; d++)
		if (mul_overflows(elements, t->shape[d], &elements))
			return false;
	return elements == view_bits / dtype_bits(t->dtype);
}

/* manifest_tensor has checked that the view lies in the bytes, and those in the segment. */
static int check_bytes(struct validator *v, uint32_t i, raw_tensor *raw, const struct ipcc_tensor *t,
		       struct ipcc_error *err)
{
	uint64_t bits = 0, exact;

	if (t->offset % dtype_alignment(t->dtype) != 0)
		return manifest_refuse(v->m.bytes, IN_ENTRY("tensors", i, raw, offset), err,
				       "%llu is not a multiple of the %u that %s needs", (unsigned long long)t->offset,
				       dtype_alignment(t->dtype), dtype_name(t->dtype));
	dtype_view_bits(t->dtype, t->shape, t->strides, t->rank, &bits);
	exact = bits / 8 + (bits % 8 != 0);
	if (t->bytes != exact && (bits == 0 || view_is_dense(t, bits)))
		return manifest_refuse(v->m.bytes, IN_ENTRY("tensors", i, raw, bytes), err,
				       "%llu; dtype and shape need exactly %llu", (unsigned long long)t->bytes,
				       (unsigned long long)exact);
	return 0;
}

static int check_alias(struct validator *v, uint32_t i, raw_tensor *raw, const struct ipcc_tensor *t,
		       struct ipcc_error *err)
{
	struct place place = IN_ENTRY("tensors", i, raw, alias_of);
	raw_tensor *owner = manifest_entry(&v->m, SECTION_TENSORS, t->alias_of);

	if (!(t->flags & IPCC_TENSOR_ALIAS))
		return t->alias_of == 0
			       ? 0
			       : manifest_refuse(v->m.bytes, place, err, "%u, but this is no alias", t->alias_of);
	/* In range, or manifest_tensor would have refused it. */
	if (le32_get(owner->flags) & IPCC_TENSOR_ALIAS)
		return manifest_refuse(v->m.bytes, place, err, "%u is an alias itself", t->alias_of);
	if (le32_get(owner->segment) != t->segment)
		return manifest_refuse(v->m.bytes, place, err, "%u lies in another segment", t->alias_of);
	if (t->offset < le64_get(owner->offset) ||
	    !range_inside(t->offset - le64_get(owner->offset), t->bytes, le64_get(owner->bytes)))
		return manifest_refuse(v->m.bytes, place, err, "the bytes are not all bytes of tensors[%u]",
				       t->alias_of);
	return 0;
}

/* Sorted by (segment, offset), so one number tells whether bytes are somebody else's already. */
static int check_place(struct validator *v, uint32_t i, raw_tensor *raw, const struct ipcc_tensor *t,
		       struct ipcc_error *err)
{
	raw_tensor *before = i > 0 ? manifest_entry(&v->m, SECTION_TENSORS, i - 1) : NULL;
	bool same_segment = before != NULL && le32_get(before->segment) == t->segment;

	if (before != NULL && le32_get(before->segment) > t->segment)
		return manifest_refuse(v->m.bytes, IN_ENTRY("tensors", i, raw, segment), err,
				       "%u stands behind %u; tensors are sorted by "
				       "segment and offset",
				       t->segment, le32_get(before->segment));
	if (same_segment && le64_get(before->offset) > t->offset)
		return manifest_refuse(v->m.bytes, IN_ENTRY("tensors", i, raw, offset), err,
				       "%llu stands behind %llu; tensors are sorted by "
				       "segment and offset",
				       (unsigned long long)t->offset, (unsigned long long)le64_get(before->offset));
	if (!same_segment)
		v->owned_end = 0;
	if (t->bytes == 0 || (t->flags & IPCC_TENSOR_ALIAS))
		return 0;
	if (t->offset < v->owned_end)
		return manifest_refuse(v->m.bytes, IN_ENTRY("tensors", i, raw, offset), err,
				       "%llu: the bytes up to %llu belong to a tensor "
				       "before, and this is no alias",
				       (unsigned long long)t->offset, (unsigned long long)v->owned_end);
	v->owned_end = t->offset + t->bytes;
	return 0;
}

int validate_tensor(struct validator *v, uint32_t i, struct ipcc_error *err)
{
	raw_tensor *raw = manifest_entry(&v->m, SECTION_TENSORS, i);
	struct ipcc_tensor t;

	int code = check_name(v, i, raw, err);
	if (code == 0)
		code = check_shape(v, i, raw, err);
	if (code == 0)
		code = manifest_tensor(&v->m, i, &t, err);
	if (code != 0)
		return code;
	if (t.flags & ~(uint32_t)KNOWN_FLAGS)
		return manifest_refuse(v->m.bytes, IN_ENTRY("tensors", i, raw, flags), err, "unknown flags 0x%x",
				       t.flags);
	if (le32_get(raw->reserved) != 0)
		return manifest_refuse(v->m.bytes, IN_ENTRY("tensors", i, raw, reserved), err, "not zero");
	code = check_bytes(v, i, raw, &t, err);
	if (code == 0)
		code = check_alias(v, i, raw, &t, err);
	return code != 0 ? code : check_place(v, i, raw, &t, err);
}
