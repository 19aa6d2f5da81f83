/* The table of element types and what follows from it: sizes of dense tensors and of strided views. */
#include "manifest/dtype.h"

#include "manifest/bytes.h"

static const struct {
	const char *name;
	uint32_t bits;
} dtypes[] = {
	[IPCC_DTYPE_BOOL] = {"BOOL", 8},
	[IPCC_DTYPE_F4] = {"F4", 4},
	[IPCC_DTYPE_F6_E2M3] = {"F6_E2M3", 6},
	[IPCC_DTYPE_F6_E3M2] = {"F6_E3M2", 6},
	[IPCC_DTYPE_U8] = {"U8", 8},
	[IPCC_DTYPE_I8] = {"I8", 8},
	[IPCC_DTYPE_F8_E5M2] = {"F8_E5M2", 8},
	[IPCC_DTYPE_F8_E4M3] = {"F8_E4M3", 8},
	[IPCC_DTYPE_F8_E8M0] = {"F8_E8M0", 8},
	[IPCC_DTYPE_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
	[IPCC_DTYPE_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
	[IPCC_DTYPE_I16] = {"I16", 16},
	[IPCC_DTYPE_U16] = {"U16", 16},
	[IPCC_DTYPE_F16] = {"F16", 16},
	[IPCC_DTYPE_BF16] = {"BF16", 16},
	[IPCC_DTYPE_I32] = {"I32", 32},
	[IPCC_DTYPE_U32] = {"U32", 32},
	[IPCC_DTYPE_F32] = {"F32", 32},
	[IPCC_DTYPE_C64] = {"C64", 64},
	[IPCC_DTYPE_F64] = {"F64", 64},
	[IPCC_DTYPE_I64] = {"I64", 64},
	[IPCC_DTYPE_U64] = {"U64", 64},
};

const char *dtype_name(uint32_t dtype)
{
	return dtype < array_length(dtypes) ? dtypes[dtype].name : NULL;
}

uint32_t dtype_from_name(const char *name)
{
	for (uint32_t i = 1; i < array_length(dtypes); i++)
		if (strcmp(dtypes[i].name, name) == 0)
			return i;
	return 0;
}

uint32_t dtype_bits(uint32_t dtype)
{
	return dtype < array_length(dtypes) ? dtypes[dtype].bits : 0;
}

uint32_t dtype_alignment(uint32_t dtype)
{
	uint32_t bits = dtype_bits(dtype);
	return bits < 8 ? 1 : bits / 8;
}

static bool has_no_element(const uint64_t *shape, uint32_t rank)
{
	for (uint32_t d = 0; d < rank; d++)
		if (shape[d] == 0)
			return true;
	return false;
}

bool dtype_dense_bytes(uint32_t dtype, const uint64_t *shape, uint32_t rank, uint64_t *bytes)
{
	uint64_t elements = 1, bits;

	/* No short cut for a zero: 2^32 x 2^32 x 0 overflows on its way, and the reference parser refuses it. */
	for (uint32_t d = 0; d < rank; d++)
		if (mul_overflows(elements, shape[d], &elements))
			return false;
	if (dtype_bits(dtype) == 0 || mul_overflows(elements, (uint64_t)dtype_bits(dtype), &bits) || bits % 8 != 0)
		return false;
	*bytes = bits / 8;
	return true;
}

void dtype_dense_strides(const uint64_t *shape, uint32_t rank, uint64_t *strides)
{
	uint64_t stride = 1;
	bool empty = has_no_element(shape, rank);

	for (uint32_t d = rank; d-- > 0;) {
		strides[d] = empty ? 0 : stride;
		stride *= shape[d];
	}
}

bool dtype_view_bits(uint32_t dtype, const uint64_t *shape, const uint64_t *strides, uint32_t rank, uint64_t *bits)
{
	uint64_t last = 0, step, end;

	if (dtype_bits(dtype) == 0)
		return false;
	if (has_no_element(shape, rank)) {
		*bits = 0;
		return true;
	}
	for (uint32_t d = 0; d < rank; d++)
		if (mul_overflows(shape[d] - 1, strides[d], &step) || add_overflows(last, step, &last))
			return false;
	if (add_overflows(last, (uint64_t)1, &end) || mul_overflows(end, (uint64_t)dtype_bits(dtype), bits))
		return false;
	return true;
}
