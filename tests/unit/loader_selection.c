/* Selections: patterns, shares of ranks, and the plans and units that come of them; no I/O. */
#include "loader/plan.h"
#include "loader/selection.h"
#include "loader/units.h"
#include "manifest/hash.h"
#include "manifest/views.h"
#include "tests/unit/leaks.h"
#include "tests/unit/loader_files.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(loader_selection, .init = leaks_before, .fini = leaks_after);

static const uint64_t shape[] = {4, 6};
static const struct safetensors_tensor matrix = {.name = "layers.0.q_proj.weight",
						 .dtype = IPCC_DTYPE_BF16,
						 .rank = 2,
						 .shape = shape,
						 .begin = 100,
						 .end = 148};

static int take(const struct selection *s, const struct safetensors_tensor *t, bool *wanted, struct selected *part,
		struct ipcc_error *err)
{
	*wanted = true;
	return selection_take(s, t, wanted, part, err);
}

static bool wants(struct selection s)
{
	struct selected part;
	struct ipcc_error err;
	bool wanted;

	cr_assert_eq(take(&s, &matrix, &wanted, &part, &err), 0);
	return wanted;
}

Test(loader_selection, patterns_include_and_exclude)
{
	cr_assert(wants((struct selection){0}));
	cr_assert(wants((struct selection){.include = {1, {"*q_proj*"}}}));
	cr_assert(wants((struct selection){.include = {2, {"x", "layers.*.weight"}}}));
	cr_assert_not(wants((struct selection){.include = {1, {"q_proj"}}}), "the whole name has to match");
	cr_assert_not(wants((struct selection){.exclude = {1, {"layers.0.*"}}}));
	cr_assert_not(wants((struct selection){.include = {1, {"*"}}, .exclude = {1, {"*weight"}}}));
}

Test(loader_selection, a_share_of_rows_is_one_piece)
{
	const struct selection s = {.rows = {1, {"*q_proj*"}}, .rank = 1, .ranks = 2};
	struct selected part;
	struct ipcc_error err;
	uint64_t got[2];
	bool wanted;

	cr_assert_eq(take(&s, &matrix, &wanted, &part, &err), 0);
	cr_assert_eq(part.skip, 24);
	cr_assert_eq(part.bytes, 24);
	cr_assert_eq(part.rows, 1);
	selection_shape(&s, &matrix, got);
	cr_assert(got[0] == 2 && got[1] == 6);
}

Test(loader_selection, a_share_of_columns_is_a_piece_of_every_row)
{
	const struct selection s = {.columns = {1, {"*q_proj*"}}, .rank = 2, .ranks = 3};
	struct selected part;
	struct ipcc_error err;
	uint64_t got[2];
	bool wanted;

	cr_assert_eq(take(&s, &matrix, &wanted, &part, &err), 0);
	cr_assert_eq(part.skip, 8);
	cr_assert_eq(part.bytes, 4);
	cr_assert_eq(part.rows, 4);
	cr_assert_eq(part.stride, 12);
	selection_shape(&s, &matrix, got);
	cr_assert(got[0] == 4 && got[1] == 2);
}

Test(loader_selection, what_cannot_be_shared_is_refused)
{
	const struct safetensors_tensor scalar = {.name = "s", .dtype = IPCC_DTYPE_F32, .begin = 0, .end = 4};
	const uint64_t odd[] = {2, 6};
	const struct safetensors_tensor packed = {
		.name = "p", .dtype = IPCC_DTYPE_F4, .rank = 2, .shape = odd, .begin = 0, .end = 6};
	struct selection s = {.rows = {1, {"*"}}, .ranks = 3};
	struct selected part;
	struct ipcc_error err;
	bool wanted;

	expect_error(take(&s, &matrix, &wanted, &part, &err), &err, IPCC_REFUSED, "its 4 rows cannot be shared by 3");
	expect_error(take(&s, &scalar, &wanted, &part, &err), &err, IPCC_REFUSED, "has no dimensions");
	s = (struct selection){.columns = {1, {"*"}}, .ranks = 2};
	expect_error(take(&s, &packed, &wanted, &part, &err), &err, IPCC_REFUSED, "ends inside a byte");
	s.rows = s.columns;
	expect_error(take(&s, &matrix, &wanted, &part, &err), &err, IPCC_REFUSED, "rows and one of columns");
	s.ranks = 1;
	cr_assert_eq(take(&s, &matrix, &wanted, &part, &err), 0, "one rank takes everything");
	cr_assert_eq(part.bytes, 48);
}

Test(loader_selection, equal_selections_have_one_text)
{
	struct selection s = {.include = {2, {"a*", "b"}}, .exclude = {1, {"c"}}, .rows = {1, {"r"}}};

	char *text = selection_text(&s);
	cr_assert_str_eq(text, "include=a* include=b exclude=c");
	free(text);
	s.rank = 1;
	s.ranks = 4;
	text = selection_text(&s);
	cr_assert_str_eq(text, "include=a* include=b exclude=c rank=1/4 rows=r");
	free(text);
	cr_assert_not(selection_is_all(&s));
	cr_assert(selection_is_all(&(struct selection){.ranks = 4}));
}

/* A file of 20 MiB: a (8 MiB, 2048 rows of 4 KiB), b (12 MiB, 48 rows of 256 KiB). */
#define MIB ((uint64_t)1 << 20)
static const uint64_t shape_a[] = {2048, 4096}, shape_b[] = {48, 256 << 10};
static const struct safetensors_tensor big[] = {
	{.name = "a", .dtype = IPCC_DTYPE_U8, .rank = 2, .shape = shape_a, .begin = 1000, .end = 1000 + 8 * MIB},
	{.name = "b",
	 .dtype = IPCC_DTYPE_U8,
	 .rank = 2,
	 .shape = shape_b,
	 .begin = 1000 + 8 * MIB,
	 .end = 1000 + 20 * MIB},
};
static struct checkpoint_file file = {.header = {.path = "m",
						 .source = {.bytes = 1000 + 20 * MIB},
						 .data_begin = 1000,
						 .tensor_count = 2,
						 .tensors = (struct safetensors_tensor *)big}};
static const struct checkpoint cp = {.root = "/m", .file_count = 1, .files = &file, .tensor_count = 2};

static void plan_and_cut(const struct selection *s, struct plan *plan, struct units *units)
{
	struct ipcc_error err;

	cr_assert_eq(plan_init_checkpoint(plan, &cp, s, 0, &err), 0, "%s", err.message);
	const struct extent_sizes sizes = {.most_bytes = 16 * MIB};
	cr_assert_eq(units_init(units, &cp, plan, &sizes), 0);
}

Test(loader_selection, everything_is_read_in_whole_blocks_header_included)
{
	struct plan plan;
	struct units units;

	plan_and_cut(NULL, &plan, &units);
	cr_assert_eq(units.unit_count, 6);
	cr_assert(units.file_whole[0]);
	cr_assert_eq(units.bytes, 1000 + 20 * MIB);
	cr_assert_eq(units.units[0].begin, 0);
	cr_assert_eq(units.units[5].bytes, 1000);
	cr_assert_eq(units.extent_count, 2);
	cr_assert_eq(units.extents[0].unit_count, 4);
	units_fini(&units);
	plan_fini(&plan);
}

Test(loader_selection, what_is_left_out_is_not_read)
{
	const struct selection s = {.exclude = {1, {"a"}}};
	struct plan plan;
	struct units units;

	plan_and_cut(&s, &plan, &units);
	cr_assert_eq(plan.places[0].tensor, 1);
	cr_assert_not(units.file_whole[0]);
	cr_assert_eq(units.bytes, 12 * MIB);
	cr_assert_eq(units.units[0].begin, 1000 + 8 * MIB);
	for (uint64_t i = 1; i < units.unit_count; i++)
		cr_assert_eq(units.units[i].begin, units.units[i - 1].begin + units.units[i - 1].bytes);
	units_fini(&units);
	plan_fini(&plan);
}

Test(loader_selection, small_gaps_are_read_and_large_ones_are_not)
{
	const struct selection s = {.columns = {1, {"*"}}, .rank = 1, .ranks = 2};
	struct plan plan;
	struct units units;

	plan_and_cut(&s, &plan, &units);
	cr_assert_eq(plan.tensor_bytes, 10 * MIB);
	cr_assert_eq(plan.read_count, 2);
	cr_assert_eq(plan.reads[0].rows, 2048);
	/* Of a nearly all, of b half: its rows are 256 KiB, with gaps of 128 KiB. */
	cr_assert_lt(units.bytes, 8 * MIB + 6 * MIB + 1);
	cr_assert_geq(units.bytes, 8 * MIB - 4096 + 6 * MIB);
	for (uint64_t i = 0; i < units.unit_count; i++)
		cr_assert_leq(units.units[i].begin % (4 * MIB) + units.units[i].bytes, 4 * MIB);
	units_fini(&units);
	plan_fini(&plan);
}

Test(loader_selection, a_selection_of_nothing_is_not_found)
{
	const struct selection s = {.include = {1, {"nothing*"}}};
	struct plan plan;
	struct ipcc_error err;

	expect_error(plan_init_checkpoint(&plan, &cp, &s, 0, &err), &err, IPCC_NOT_FOUND, "none of its 2 tensors");
}

Test(loader_selection, extents_get_shorter_towards_the_end_of_a_segment)
{
	struct files files;
	struct checkpoint one;
	struct plan plan;
	struct units units;
	struct ipcc_error err = {0};
	const struct extent_sizes sizes = {.least_bytes = 8 * MIB, .most_bytes = 32 * MIB, .workers = 2};
	uint64_t before = UINT64_MAX, last = 0;

	files_init(&files);
	files_write_tensors(&files, "x.safetensors",
			    "{\"a\":{\"dtype\":\"U8\",\"shape\":[200000000],\"data_offsets\":[0,200000000]}}",
			    200000000, 0);
	cr_assert_eq(checkpoint_open(&one, files.folder, &err), 0, "%s", err.message);
	cr_assert_eq(plan_init_checkpoint(&plan, &one, NULL, 0, &err), 0);
	cr_assert_eq(units_init(&units, &one, &plan, &sizes), 0);
	cr_assert_eq(plan.segment_count, 1);
	for (uint32_t i = 0; i < units.extent_count; i++) {
		uint64_t bytes = units.extents[i].unit_count * HASH_BLOCK_BYTES;
		cr_expect_leq(bytes, before, "extent %u", i);
		cr_expect(bytes >= 8 * MIB || i + 1 == units.extent_count);
		last = before = bytes;
	}
	cr_expect_eq(units.extents[0].unit_count, 8);
	cr_expect_leq(last, 8 * MIB);
	units_fini(&units);
	plan_fini(&plan);
	checkpoint_fini(&one);
	files_fini(&files);
}
