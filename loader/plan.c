/*
 * See plan.h. Two passes: segments are counted until the limit suffices, then everything is laid out. Nothing can
 * overflow in the second pass: the first has added up all sizes, rounded up, with checks.
 */
#include "loader/plan.h"

#include "bpf/probes.h"
#include "loader/shown.h"
#include "manifest/bytes.h"
#include "manifest/fail.h"
#include "manifest/fd.h"
#include "manifest/format.h"

#include <stdbool.h>
#include <stdlib.h>

#define ALIGNMENT ((uint64_t)MANIFEST_TENSOR_ALIGNMENT)

int plan_round(struct plan *plan, uint64_t granularity, struct ipcc_error *err)
{
	uint64_t total = 0, rounded;

	for (uint32_t i = 0; i < plan->segment_count; i++)
		if (add_overflows(plan->segment_bytes[i], granularity - 1, &rounded) ||
		    add_overflows(total, align_up(plan->segment_bytes[i], granularity), &total))
			return fail(err, IPCC_INVALID, "the segments' sizes exceed 64 bits");
	for (uint32_t i = 0; i < plan->segment_count; i++)
		plan->segment_bytes[i] = align_up(plan->segment_bytes[i], granularity);
	plan->total_bytes = total;
	return 0;
}

void plan_fini(struct plan *plan)
{
	free(plan->segment_bytes);
	free(plan->places);
	free(plan->reads);
	*plan = (struct plan){0};
}

/* Where the next tensor goes. `used` is aligned. */
struct cursor_place {
	uint32_t segment;
	uint64_t used;
};

/* Moves on to the next segment if `bytes` more would exceed the limit; a first tensor always fits. */
static void make_place(struct cursor_place *at, uint64_t bytes, uint64_t limit)
{
	if (at->used != 0 && (at->used > limit || bytes > limit - at->used)) {
		at->segment++;
		at->used = 0;
	}
}

static uint64_t row_count(const struct plan_tensor *t)
{
	return t->rows != 0 ? t->rows : 1;
}

/* Checked by check_request. */
static uint64_t tensor_size(const struct plan_tensor *t)
{
	return row_count(t) * t->bytes;
}

static uint64_t count_segments(const struct plan_tensor *tensors, uint32_t count, uint64_t limit)
{
	struct cursor_place at = {0};

	for (uint32_t i = 0; i < count; i++) {
		make_place(&at, tensor_size(&tensors[i]), limit);
		at.used += align_up(tensor_size(&tensors[i]), ALIGNMENT);
	}
	return (uint64_t)at.segment + 1;
}

/* Where the tensor's last row ends in its file; false when that, or its size, exceeds 64 bits. */
static bool tensor_end(const struct plan_tensor *t, uint64_t *end)
{
	uint64_t size, distance;

	return !mul_overflows(row_count(t), t->bytes, &size) &&
	       !mul_overflows(row_count(t) - 1, t->stride, &distance) &&
	       !add_overflows(t->begin, distance, &distance) && !add_overflows(distance, t->bytes, end);
}

/* The order that is promised, and a sum that does not overflow; stores that sum of sizes as they are. */
static int check_request(const struct plan_tensor *tensors, uint32_t count, uint64_t *tensor_bytes,
			 struct ipcc_error *err)
{
	uint64_t sum = 0, padded = 0, end = 0;

	for (uint32_t i = 0; i < count; i++) {
		const struct plan_tensor *t = &tensors[i];
		if (i > 0 && (t->file < t[-1].file || (t->file == t[-1].file && t->begin < end)))
			return fail(err, IPCC_USAGE, "tensor %u of the plan is out of order or overlaps", i);
		if (t->rows > 1 && t->stride < t->bytes)
			return fail(err, IPCC_USAGE, "the rows of tensor %u of the plan overlap", i);
		if (!tensor_end(t, &end) || add_overflows(padded, tensor_size(t), &padded) ||
		    padded > UINT64_MAX - ALIGNMENT)
			return fail(err, IPCC_INVALID, "the sizes of the tensors overflow at tensor %u of the plan", i);
		padded = align_up(padded, ALIGNMENT);
		sum += tensor_size(t);
	}
	*tensor_bytes = sum;
	return 0;
}

/* The read that fetches tensor `t` into `place`, merged with the one before where both ends meet. */
static void add_read(struct plan *plan, const struct plan_tensor *t, const struct plan_place *place)
{
	struct plan_read read = {
		.file = t->file,
		.segment = place->segment,
		.file_offset = t->begin,
		.offset = place->offset,
		.bytes = t->bytes,
		.rows = row_count(t),
		.stride = t->stride,
	};

	if (t->bytes == 0)
		return;
	if (read.rows > 1 && read.stride == read.bytes) {
		read.bytes *= read.rows;
		read.rows = 1;
	}
	if (plan->read_count > 0 && read.rows == 1) {
		struct plan_read *last = &plan->reads[plan->read_count - 1];
		if (last->rows == 1 && last->file == read.file && last->file_offset + last->bytes == read.file_offset &&
		    last->segment == read.segment && last->offset + last->bytes == read.offset) {
			last->bytes += read.bytes;
			return;
		}
	}
	plan->reads[plan->read_count++] = read;
}

static void lay_out(struct plan *plan, const struct plan_tensor *tensors, uint32_t count, uint64_t limit)
{
	struct cursor_place at = {0};

	for (uint32_t i = 0; i < count; i++) {
		uint64_t bytes = tensor_size(&tensors[i]);
		make_place(&at, bytes, limit);
		plan->places[i] =
			(struct plan_place){.segment = at.segment, .tensor = i, .offset = at.used, .bytes = bytes};
		add_read(plan, &tensors[i], &plan->places[i]);
		at.used += align_up(bytes, ALIGNMENT);
		plan->segment_bytes[at.segment] = at.used;
	}
	plan->tensor_count = count;
	plan->segment_count = count > 0 ? at.segment + 1 : 0;
	for (uint32_t i = 0; i < plan->segment_count; i++) {
		/* Only tensors without elements: memory of no size cannot be mapped. */
		if (plan->segment_bytes[i] == 0)
			plan->segment_bytes[i] = ALIGNMENT;
		plan->total_bytes += plan->segment_bytes[i];
	}
}

static uint64_t default_limit(uint64_t tensor_bytes)
{
	uint64_t quarter = align_up(tensor_bytes / 4, ALIGNMENT);

	if (quarter < PLAN_SEGMENT_LEAST_BYTES)
		return PLAN_SEGMENT_LEAST_BYTES;
	return quarter < PLAN_SEGMENT_LIMIT_BYTES ? quarter : PLAN_SEGMENT_LIMIT_BYTES;
}

int plan_init(struct plan *plan, const struct plan_tensor *tensors, uint32_t count, uint64_t segment_limit_bytes,
	      struct ipcc_error *err)
{
	struct plan made = {0};
	uint64_t segments;

	int r = check_request(tensors, count, &made.tensor_bytes, err);
	if (r != 0)
		return r;
	uint64_t limit = segment_limit_bytes != 0 ? segment_limit_bytes : default_limit(made.tensor_bytes);
	/* Ends: one segment holds everything once the limit exceeds the sum. */
	while ((segments = count_segments(tensors, count, limit)) > MANIFEST_MAX_SEGMENTS) {
		if (mul_overflows(limit, 2, &limit))
			limit = UINT64_MAX;
	}
	made.segment_bytes = calloc(segments, sizeof(*made.segment_bytes));
	made.places = calloc((size_t)count + 1, sizeof(*made.places));
	made.reads = calloc((size_t)count + 1, sizeof(*made.reads));
	if (made.segment_bytes == NULL || made.places == NULL || made.reads == NULL) {
		plan_fini(&made);
		return fail(err, IPCC_NO_MEMORY, "no memory to plan %u tensors", count);
	}
	lay_out(&made, tensors, count, limit);
	*plan = made;
	return 0;
}

/* What is asked of a checkpoint, in its order; tensors[] has room for all of its tensors. */
static int request_tensors(const struct checkpoint *cp, const struct selection *selection, struct plan_tensor *tensors,
			   uint32_t *numbers, uint32_t *count, struct ipcc_error *err)
{
	uint32_t taken = 0;

	for (uint32_t f = 0; f < cp->file_count; f++) {
		const struct safetensors *header = &cp->files[f].header;
		for (uint32_t i = 0; i < header->tensor_count; i++) {
			const struct safetensors_tensor *t = &header->tensors[i];
			struct selected part = {.bytes = t->end - t->begin, .rows = 1};
			bool wanted = true;
			if (t->rank > MANIFEST_MAX_RANK)
				return fail(
					err, IPCC_REFUSED,
					"%s: tensor '%s' has %u dimensions; a resident model's tensors have at most %d",
					shown(header->path), shown(t->name), t->rank, MANIFEST_MAX_RANK);
			int r = selection == NULL ? 0 : selection_take(selection, t, &wanted, &part, err);
			if (r != 0)
				return r;
			if (!wanted)
				continue;
			numbers[taken] = cp->files[f].first_tensor + i;
			tensors[taken++] =
				(struct plan_tensor){f, t->begin + part.skip, part.bytes, part.rows, part.stride};
		}
	}
	*count = taken;
	return 0;
}

int plan_init_checkpoint(struct plan *plan, const struct checkpoint *cp, const struct selection *selection,
			 uint64_t segment_limit_bytes, struct ipcc_error *err)
{
	uint32_t count = 0;

	if (cp->tensor_count == 0)
		return fail(err, IPCC_INVALID, "%s: has no tensors, there is nothing to load", shown(cp->root));
	cleanup_free struct plan_tensor *tensors = calloc(cp->tensor_count, sizeof(*tensors));
	cleanup_free uint32_t *numbers = calloc(cp->tensor_count, sizeof(*numbers));
	if (tensors == NULL || numbers == NULL)
		return fail(err, IPCC_NO_MEMORY, "no memory to plan %u tensors", cp->tensor_count);
	int r = request_tensors(cp, selection, tensors, numbers, &count, err);
	if (r != 0)
		return r;
	if (count == 0)
		return fail(err, IPCC_NOT_FOUND, "%s: none of its %u tensors is selected", shown(cp->root),
			    cp->tensor_count);
	struct plan made;
	r = plan_init(&made, tensors, count, segment_limit_bytes, err);
	if (r != 0)
		return r;
	for (uint32_t i = 0; i < count; i++)
		made.places[i].tensor = numbers[i];
	PROBE_PLAN_MADE(cp->root, made.tensor_bytes, made.tensor_count, made.segment_count, made.read_count);
	*plan = made;
	return 0;
}
