/* Plans: alignment, coalescing, segments; no I/O. */
#include "loader/plan.h"
#include "manifest/bytes.h"
#include "manifest/format.h"
#include "tests/unit/leaks.h"
#include "tests/unit/loader_files.h"

#include <criterion/criterion.h>
#include <stdlib.h>

TestSuite(loader_plan, .init = leaks_before, .fini = leaks_after);

static struct plan make(const struct plan_tensor *tensors, uint32_t count, uint64_t limit)
{
	struct plan plan = {0};
	struct ipcc_error err = {0};

	cr_assert_eq(plan_init(&plan, tensors, count, limit, &err), 0, "%s", err.message);
	return plan;
}

static void expect_place(const struct plan *plan, uint32_t i, uint32_t segment, uint64_t offset)
{
	cr_expect_eq(plan->places[i].segment, segment, "tensor %u is in segment %u", i, plan->places[i].segment);
	cr_expect_eq(plan->places[i].offset, offset, "tensor %u is at %lu", i, (unsigned long)plan->places[i].offset);
}

Test(loader_plan, aligned_neighbours_become_one_read)
{
	const struct plan_tensor tensors[] = {{0, 100, 512, 0, 0}, {0, 612, 256, 0, 0}, {0, 868, 100, 0, 0}};
	struct plan plan = make(tensors, 3, 0);

	expect_place(&plan, 0, 0, 0);
	expect_place(&plan, 1, 0, 512);
	expect_place(&plan, 2, 0, 768);
	cr_assert_eq(plan.read_count, 1);
	cr_assert_eq(plan.reads[0].file_offset, 100);
	cr_assert_eq(plan.reads[0].offset, 0);
	cr_assert_eq(plan.reads[0].bytes, 868);
	cr_assert_eq(plan.segment_count, 1);
	cr_assert_eq(plan.segment_bytes[0], 1024);
	cr_assert_eq(plan.tensor_bytes, 868);
	cr_assert_eq(plan.total_bytes, 1024);
	plan_fini(&plan);
}

Test(loader_plan, tensors_start_at_multiples_of_256_and_padding_splits_reads)
{
	const struct plan_tensor tensors[] = {{0, 8, 100, 0, 0}, {0, 108, 300, 0, 0}, {0, 408, 1, 0, 0}};
	struct plan plan = make(tensors, 3, 0);

	expect_place(&plan, 0, 0, 0);
	expect_place(&plan, 1, 0, 256);
	expect_place(&plan, 2, 0, 768);
	cr_assert_eq(plan.read_count, 3);
	cr_assert_eq(plan.reads[1].file_offset, 108);
	cr_assert_eq(plan.reads[1].offset, 256);
	cr_assert_eq(plan.reads[1].bytes, 300);
	plan_fini(&plan);
}

Test(loader_plan, holes_in_the_file_and_other_files_split_reads)
{
	const struct plan_tensor tensors[] = {{0, 0, 256, 0, 0}, {0, 300, 256, 0, 0}, {1, 556, 256, 0, 0}};
	struct plan plan = make(tensors, 3, 0);

	cr_assert_eq(plan.read_count, 3);
	cr_assert_eq(plan.reads[2].file, 1);
	cr_assert_eq(plan.segment_bytes[0], 768);
	plan_fini(&plan);
}

Test(loader_plan, no_tensor_straddles_segments)
{
	const struct plan_tensor tensors[] = {{0, 0, 700, 0, 0},
					      {0, 700, 256, 0, 0},
					      {0, 956, 300, 0, 0},
					      {0, 1256, 5000, 0, 0},
					      {0, 6256, 10, 0, 0}};
	struct plan plan = make(tensors, 5, 1024);

	expect_place(&plan, 0, 0, 0);
	expect_place(&plan, 1, 0, 768);
	expect_place(&plan, 2, 1, 0);
	expect_place(&plan, 3, 2, 0);
	expect_place(&plan, 4, 3, 0);
	cr_assert_eq(plan.segment_count, 4);
	cr_assert_eq(plan.segment_bytes[0], 1024);
	cr_assert_eq(plan.segment_bytes[1], 512);
	cr_assert_eq(plan.segment_bytes[2], 5120, "larger than the limit, and alone");
	cr_assert_eq(plan.segment_bytes[3], 256);
	plan_fini(&plan);
}

Test(loader_plan, tensors_without_elements_have_a_place_and_no_read)
{
	const struct plan_tensor tensors[] = {
		{0, 8, 0, 0, 0}, {0, 8, 256, 0, 0}, {0, 264, 0, 0, 0}, {0, 264, 256, 0, 0}, {0, 520, 0, 0, 0}};
	struct plan plan = make(tensors, 5, 0);

	expect_place(&plan, 0, 0, 0);
	expect_place(&plan, 1, 0, 0);
	expect_place(&plan, 2, 0, 256);
	expect_place(&plan, 4, 0, 512);
	cr_assert_eq(plan.read_count, 1);
	cr_assert_eq(plan.segment_bytes[0], 512);
	plan_fini(&plan);
}

Test(loader_plan, a_model_of_empty_tensors_has_a_segment_that_can_be_mapped)
{
	const struct plan_tensor tensors[] = {{0, 8, 0, 0, 0}, {0, 8, 0, 0, 0}};
	struct plan plan = make(tensors, 2, 0);

	cr_assert_eq(plan.segment_count, 1);
	cr_assert_eq(plan.segment_bytes[0], 256);
	cr_assert_eq(plan.read_count, 0);
	plan_fini(&plan);
}

Test(loader_plan, the_limit_is_raised_until_the_segments_suffice)
{
	enum { COUNT = 10000 };
	struct plan_tensor *tensors = calloc(COUNT, sizeof(*tensors));

	for (uint32_t i = 0; i < COUNT; i++)
		tensors[i] = (struct plan_tensor){0, (uint64_t)i * 1000, 1000, 0, 0};
	struct plan plan = make(tensors, COUNT, 1024);
	cr_assert_leq(plan.segment_count, MANIFEST_MAX_SEGMENTS);
	cr_assert_gt(plan.segment_count, MANIFEST_MAX_SEGMENTS / 4);
	for (uint32_t i = 0; i < COUNT; i++) {
		const struct plan_place *place = &plan.places[i];
		cr_assert_eq(place->offset % MANIFEST_TENSOR_ALIGNMENT, 0);
		cr_assert(range_inside(place->offset, place->bytes, plan.segment_bytes[place->segment]));
		cr_assert(i == 0 || place->segment > place[-1].segment || place->offset >= place[-1].offset + 1000);
	}
	plan_fini(&plan);
	free(tensors);
}

Test(loader_plan, disorder_overlaps_and_overflows_are_refused)
{
	const struct plan_tensor disorder[] = {{1, 0, 10, 0, 0}, {0, 0, 10, 0, 0}};
	const struct plan_tensor overlap[] = {{0, 0, 10, 0, 0}, {0, 9, 10, 0, 0}};
	const struct plan_tensor overflow[] = {
		{0, 0, UINT64_MAX / 2, 0, 0}, {1, 0, UINT64_MAX / 2, 0, 0}, {2, 0, 1000, 0, 0}};
	const struct plan_tensor wrap[] = {{0, UINT64_MAX, 10, 0, 0}};
	struct plan plan = {0};
	struct ipcc_error err = {0};

	expect_error(plan_init(&plan, disorder, 2, 0, &err), &err, IPCC_USAGE, "tensor 1 of the plan is out of order");
	expect_error(plan_init(&plan, overlap, 2, 0, &err), &err, IPCC_USAGE, "tensor 1 of the plan");
	expect_error(plan_init(&plan, overflow, 3, 0, &err), &err, IPCC_INVALID, "overflow");
	expect_error(plan_init(&plan, wrap, 1, 0, &err), &err, IPCC_INVALID, "overflow at tensor 0");
	cr_assert_null(plan.places);
}

Test(loader_plan, a_tensor_of_nine_dimensions_and_an_empty_model_are_refused)
{
	struct safetensors_tensor tensor = {.name = "deep", .rank = 9, .begin = 8, .end = 9};
	struct checkpoint_file file = {.header = {.path = "m.safetensors", .tensor_count = 1, .tensors = &tensor}};
	struct checkpoint cp = {.root = "/m", .file_count = 1, .files = &file, .tensor_count = 1};
	struct plan plan;
	struct ipcc_error err = {0};

	expect_error(plan_init_checkpoint(&plan, &cp, NULL, 0, &err), &err, IPCC_REFUSED,
		     "m.safetensors: tensor 'deep' has 9 dimensions");
	cp.tensor_count = 0;
	expect_error(plan_init_checkpoint(&plan, &cp, NULL, 0, &err), &err, IPCC_INVALID, "/m: has no tensors");
}
