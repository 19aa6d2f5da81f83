/* Element types, against the rules of the safetensors reference parser. */
#include "manifest/dtype.h"
#include "manifest/bytes.h"
#include "tests/unit/leaks.h"

#include <criterion/criterion.h>

TestSuite(manifest_dtype, .init = leaks_before, .fini = leaks_after);

static const struct {
	uint32_t dtype;
	const char *name;
	uint32_t bits;
	uint32_t alignment;
} known[] = {
	{IPCC_DTYPE_BOOL, "BOOL", 8, 1},
	{IPCC_DTYPE_F4, "F4", 4, 1},
	{IPCC_DTYPE_F6_E2M3, "F6_E2M3", 6, 1},
	{IPCC_DTYPE_F6_E3M2, "F6_E3M2", 6, 1},
	{IPCC_DTYPE_U8, "U8", 8, 1},
	{IPCC_DTYPE_I8, "I8", 8, 1},
	{IPCC_DTYPE_F8_E5M2, "F8_E5M2", 8, 1},
	{IPCC_DTYPE_F8_E4M3, "F8_E4M3", 8, 1},
	{IPCC_DTYPE_F8_E8M0, "F8_E8M0", 8, 1},
	{IPCC_DTYPE_F8_E4M3FNUZ, "F8_E4M3FNUZ", 8, 1},
	{IPCC_DTYPE_F8_E5M2FNUZ, "F8_E5M2FNUZ", 8, 1},
	{IPCC_DTYPE_I16, "I16", 16, 2},
	{IPCC_DTYPE_U16, "U16", 16, 2},
	{IPCC_DTYPE_F16, "F16", 16, 2},
	{IPCC_DTYPE_BF16, "BF16", 16, 2},
	{IPCC_DTYPE_I32, "I32", 32, 4},
	{IPCC_DTYPE_U32, "U32", 32, 4},
	{IPCC_DTYPE_F32, "F32", 32, 4},
	{IPCC_DTYPE_C64, "C64", 64, 8},
	{IPCC_DTYPE_F64, "F64", 64, 8},
	{IPCC_DTYPE_I64, "I64", 64, 8},
	{IPCC_DTYPE_U64, "U64", 64, 8},
};

Test(manifest_dtype, each_safetensors_type_has_its_name_and_size)
{
	cr_assert_eq(array_length(known), 22);
	for (uint32_t i = 0; i < array_length(known); i++) {
		cr_assert_eq(known[i].dtype, i + 1, "the numbers are part of the format");
		cr_assert_str_eq(dtype_name(known[i].dtype), known[i].name);
		cr_assert_eq(dtype_from_name(known[i].name), known[i].dtype, "%s", known[i].name);
		cr_assert_eq(dtype_bits(known[i].dtype), known[i].bits, "%s", known[i].name);
		cr_assert_eq(dtype_alignment(known[i].dtype), known[i].alignment, "%s", known[i].name);
	}
}

Test(manifest_dtype, names_that_the_reference_parser_refuses_are_no_types)
{
	static const char *const refused[] = {"F128", "i32", "C128", "E8M0",  "F6", "F8_E4M3FN",
					      "I4",   "U4",  "",     "BF16 ", "BF"};

	for (size_t i = 0; i < array_length(refused); i++)
		cr_assert_eq(dtype_from_name(refused[i]), 0, "%s", refused[i]);
}

Test(manifest_dtype, a_number_that_is_no_type_has_no_name_and_no_size)
{
	static const uint32_t numbers[] = {0, 23, 255, UINT32_MAX};
	uint64_t bytes = 77, shape = 1, stride = 1;

	for (size_t i = 0; i < array_length(numbers); i++) {
		cr_assert_null(dtype_name(numbers[i]));
		cr_assert_eq(dtype_bits(numbers[i]), 0);
		cr_assert_eq(dtype_alignment(numbers[i]), 1);
		cr_assert_not(dtype_dense_bytes(numbers[i], &shape, 1, &bytes));
		cr_assert_not(dtype_view_bits(numbers[i], &shape, &stride, 1, &bytes));
	}
	cr_assert_eq(bytes, 77);
}

Test(manifest_dtype, dense_sizes_follow_the_reference_parser)
{
	const uint64_t big = (uint64_t)1 << 32;
	const struct {
		const char *what;
		uint32_t dtype;
		uint32_t rank;
		uint64_t shape[4];
		bool fits;
		uint64_t bytes;
	} cases[] = {
		{"scalar", IPCC_DTYPE_I32, 0, {0}, true, 4},
		{"matrix", IPCC_DTYPE_I32, 2, {2, 2}, true, 16},
		{"no rows", IPCC_DTYPE_F32, 2, {0, 3}, true, 0},
		{"overflow of the shape", IPCC_DTYPE_I32, 2, {2, UINT64_MAX - 1}, false, 0},
		{"overflow that wraps to 0", IPCC_DTYPE_U8, 2, {big, big}, false, 0},
		{"zero first, then huge", IPCC_DTYPE_U8, 3, {0, big, big}, true, 0},
		{"huge first, then zero", IPCC_DTYPE_U8, 3, {big, big, 0}, false, 0},
		{"overflow of the bits", IPCC_DTYPE_U8, 1, {(uint64_t)1 << 61}, false, 0},
		{"the last that fits", IPCC_DTYPE_U8, 1, {((uint64_t)1 << 61) - 1}, true, ((uint64_t)1 << 61) - 1},
		{"F4, half a byte left", IPCC_DTYPE_F4, 1, {3}, false, 0},
		{"F4, even", IPCC_DTYPE_F4, 2, {1, 4}, true, 2},
		{"F6, whole bytes", IPCC_DTYPE_F6_E2M3, 1, {4}, true, 3},
		{"F6, a broken byte", IPCC_DTYPE_F6_E3M2, 1, {5}, false, 0},
	};

	for (size_t i = 0; i < array_length(cases); i++) {
		uint64_t bytes = 12345;
		bool fits = dtype_dense_bytes(cases[i].dtype, cases[i].shape, cases[i].rank, &bytes);
		cr_assert_eq(fits, cases[i].fits, "%s", cases[i].what);
		cr_assert_eq(bytes, fits ? cases[i].bytes : 12345, "%s", cases[i].what);
	}
}

Test(manifest_dtype, a_dense_view_is_as_long_as_the_dense_tensor)
{
	const uint64_t shape[] = {3, 4, 5};
	uint64_t strides[3], bits, bytes;

	dtype_dense_strides(shape, 3, strides);
	cr_assert_arr_eq(strides, ((uint64_t[]){20, 5, 1}), sizeof(strides));
	for (uint32_t i = 0; i < array_length(known); i++) {
		cr_assert(dtype_view_bits(known[i].dtype, shape, strides, 3, &bits));
		if (dtype_dense_bytes(known[i].dtype, shape, 3, &bytes))
			cr_assert_eq(bits, bytes * 8, "%s", known[i].name);
	}
}

Test(manifest_dtype, a_view_reaches_to_the_end_of_its_last_element)
{
	uint64_t bits = 0;

	cr_assert(dtype_view_bits(IPCC_DTYPE_F16, (uint64_t[]){4, 4}, (uint64_t[]){6, 1}, 2, &bits));
	cr_assert_eq(bits, (3 * 6 + 4) * 16);
	cr_assert(dtype_view_bits(IPCC_DTYPE_F4, (uint64_t[]){3}, (uint64_t[]){1}, 1, &bits));
	cr_assert_eq(bits, 12);
	cr_assert(dtype_view_bits(IPCC_DTYPE_U8, (uint64_t[]){1000}, (uint64_t[]){0}, 1, &bits));
	cr_assert_eq(bits, 8, "a broadcast view has one element's bytes");
	cr_assert(dtype_view_bits(IPCC_DTYPE_F64, NULL, NULL, 0, &bits));
	cr_assert_eq(bits, 64);
	cr_assert(dtype_view_bits(IPCC_DTYPE_U8, (uint64_t[]){UINT64_MAX, 0}, (uint64_t[]){UINT64_MAX, 1}, 2, &bits));
	cr_assert_eq(bits, 0, "no element, nowhere to reach");
}

Test(manifest_dtype, a_view_that_overflows_is_refused)
{
	const uint64_t half = (uint64_t)1 << 63;
	uint64_t bits = 0;

	cr_assert_not(dtype_view_bits(IPCC_DTYPE_U8, (uint64_t[]){3}, (uint64_t[]){half}, 1, &bits), "a product");
	cr_assert_not(dtype_view_bits(IPCC_DTYPE_U8, (uint64_t[]){2, 2}, (uint64_t[]){half, half}, 2, &bits), "a sum");
	cr_assert_not(dtype_view_bits(IPCC_DTYPE_U8, (uint64_t[]){2}, (uint64_t[]){UINT64_MAX}, 1, &bits), "the end");
	cr_assert_not(dtype_view_bits(IPCC_DTYPE_U8, (uint64_t[]){2}, (uint64_t[]){half / 4}, 1, &bits), "the bits");
}

Test(manifest_dtype, a_tensor_without_elements_has_strides_whatever_its_shape)
{
	uint64_t strides[3] = {9, 9, 9};

	dtype_dense_strides((uint64_t[]){0, (uint64_t)1 << 40, (uint64_t)1 << 40}, 3, strides);
	cr_assert_arr_eq(strides, ((uint64_t[]){0, 0, 0}), sizeof(strides));
}
