/* Checked arithmetic, little-endian types and the bounded cursor. */
#include "manifest/bytes.h"
#include "tests/unit/leaks.h"

#include <criterion/criterion.h>

TestSuite(manifest_bytes, .init = leaks_before, .fini = leaks_after);

Test(manifest_bytes, numbers_leave_the_process_with_their_low_byte_first)
{
	le16 two = le16_make(0x0102);
	le32 four = le32_make(0x01020304);
	le64 eight = le64_make(UINT64_C(0x0102030405060708));

	cr_assert_arr_eq(&two, "\x02\x01", 2);
	cr_assert_arr_eq(&four, "\x04\x03\x02\x01", 4);
	cr_assert_arr_eq(&eight, "\x08\x07\x06\x05\x04\x03\x02\x01", 8);
	cr_assert_eq(le16_get(two), 0x0102);
	cr_assert_eq(le32_get(four), 0x01020304u);
	cr_assert_eq(le64_get(eight), UINT64_C(0x0102030405060708));
}

Test(manifest_bytes, sums_and_products_say_when_they_do_not_fit)
{
	uint64_t result = 0;

	cr_assert_not(add_overflows(UINT64_MAX - 1, (uint64_t)1, &result));
	cr_assert_eq(result, UINT64_MAX);
	cr_assert(add_overflows(UINT64_MAX, (uint64_t)1, &result));
	cr_assert_not(mul_overflows((uint64_t)1 << 32, (uint64_t)1 << 31, &result));
	cr_assert_eq(result, (uint64_t)1 << 63);
	cr_assert(mul_overflows((uint64_t)1 << 32, (uint64_t)1 << 32, &result));
}

Test(manifest_bytes, rounding_up_goes_to_the_next_multiple)
{
	cr_assert_eq(align_up(0, 64), 0);
	cr_assert_eq(align_up(1, 64), 64);
	cr_assert_eq(align_up(64, 64), 64);
	cr_assert_eq(align_up(65, 64), 128);
	cr_assert_eq(align_up(UINT64_C(0x100000001), 4096), UINT64_C(0x100001000));
}

Test(manifest_bytes, a_range_is_inside_only_if_its_end_is_too)
{
	cr_assert(range_inside(0, 0, 0));
	cr_assert(range_inside(10, 0, 10));
	cr_assert(range_inside(4, 6, 10));
	cr_assert_not(range_inside(4, 7, 10));
	cr_assert_not(range_inside(11, 0, 10));
	cr_assert_not(range_inside(UINT64_MAX, 2, 10));
	cr_assert_not(range_inside(2, UINT64_MAX, 10));
}

Test(manifest_bytes, a_cursor_gives_the_bytes_in_order_and_knows_its_end)
{
	const char bytes[] = {1, 2, 3, 4, 5};
	struct cursor c = cursor_over(bytes, sizeof(bytes));
	uint8_t two[2];

	cr_assert_not(cursor_finished(&c));
	cr_assert_eq(cursor_take(&c, 3), bytes);
	cursor_copy(&c, two, sizeof(two));
	cr_assert_arr_eq(two, bytes + 3, 2);
	cr_assert(cursor_finished(&c));
	cr_assert_not_null(cursor_take(&c, 0));
	cr_assert(cursor_finished(&c));
}

Test(manifest_bytes, a_cursor_that_failed_gives_zeros_ever_after)
{
	const char bytes[] = {1, 2, 3};
	struct cursor c = cursor_over(bytes, sizeof(bytes));
	uint8_t four[4] = {9, 9, 9, 9};

	cursor_copy(&c, four, sizeof(four));
	cr_assert(c.failed);
	cr_assert_arr_eq(four, "\0\0\0\0", 4);
	cr_assert_null(cursor_take(&c, 1), "three bytes are left, but order is lost");
	cr_assert_not(cursor_finished(&c));
}

Test(manifest_bytes, a_length_of_any_size_cannot_move_a_cursor_out_of_its_bytes)
{
	const char bytes[] = {1, 2, 3};
	struct cursor c = cursor_over(bytes, sizeof(bytes));

	cr_assert_null(cursor_take(&c, SIZE_MAX));
	cr_assert_eq(c.at, (const uint8_t *)bytes);
	cr_assert_eq(c.left, 3);
}
