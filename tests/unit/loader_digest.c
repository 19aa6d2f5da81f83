/* Digests: whatever the order in which extents are hashed, blocks have the hashes of a serial computation. */
#include "loader/digest.h"
#include "loader/scatter.h"
#include "tests/unit/leaks.h"
#include "tests/unit/loader_files.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(loader_digest, .init = leaks_before, .fini = leaks_after);

#define MIB	    ((uint64_t)1 << 20)
#define MAX_EXTENTS 32

struct setting {
	struct files files;
	struct checkpoint cp;
	struct plan plan;
	struct units units;
	struct digest digest;
	uint8_t *segment;
	uint8_t *data[MAX_EXTENTS]; /* the files */
};

/* `count` shards of three tensors, `bytes` bytes and some; odd sizes, so that there are gaps between all tensors. */
static void setting_init(struct setting *s, unsigned count, uint64_t bytes, uint64_t extent_bytes)
{
	char map[2048] = "{\"weight_map\":{", header[512], name[16];
	struct ipcc_error err = {0};
	size_t length;

	*s = (struct setting){0};
	files_init(&s->files);
	for (unsigned i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "s%02u", i);
		snprintf(header, sizeof(header),
			 "{\"a%u\":{\"dtype\":\"U8\",\"shape\":[%lu],\"data_offsets\":[0,%lu]},"
			 "\"b%u\":{\"dtype\":\"U8\",\"shape\":[77],\"data_offsets\":[%lu,%lu]},"
			 "\"c%u\":{\"dtype\":\"U8\",\"shape\":[333],\"data_offsets\":[%lu,%lu]}}",
			 i, bytes, bytes, i, bytes, bytes + 77, i, bytes + 77, bytes + 410);
		files_write_tensors(&s->files, name, header, bytes + 410, i);
		snprintf(map + strlen(map), sizeof(map) - strlen(map), "%s\"a%u\":\"%s\",\"b%u\":\"%s\",\"c%u\":\"%s\"",
			 i > 0 ? "," : "", i, name, i, name, i, name);
	}
	strcat(map, "}}");
	files_write_text(&s->files, CHECKPOINT_INDEX, map);
	cr_assert_eq(checkpoint_open(&s->cp, s->files.folder, &err), 0, "%s", err.message);
	cr_assert_eq(plan_init_checkpoint(&s->plan, &s->cp, NULL, (uint64_t)1 << 30, &err), 0, "%s", err.message);
	cr_assert_eq(s->plan.segment_count, 1);
	const struct extent_sizes sizes = {.most_bytes = extent_bytes};
	cr_assert_eq(units_init(&s->units, &s->cp, &s->plan, &sizes), 0);
	cr_assert_eq(digest_init(&s->digest, &s->plan, &s->units), 0);
	cr_assert_leq(s->units.extent_count, MAX_EXTENTS);
	s->segment = calloc(1, s->plan.segment_bytes[0]);
	for (unsigned i = 0; i < count; i++)
		s->data[i] = files_read(s->cp.files[i].header.path, &length);
}

static void setting_fini(struct setting *s)
{
	for (unsigned i = 0; i < MAX_EXTENTS; i++)
		free(s->data[i]);
	free(s->segment);
	digest_fini(&s->digest);
	units_fini(&s->units);
	plan_fini(&s->plan);
	checkpoint_fini(&s->cp);
	files_fini(&s->files);
}

struct adding {
	struct setting *setting;
	struct digest_cursor *cursor;
};

static int add(void *context, uint32_t segment, uint64_t offset, const uint8_t *from, uint64_t bytes)
{
	struct adding *a = context;

	memcpy(a->setting->segment + offset, from, bytes);
	digest_add(a->cursor, segment, offset, from, bytes);
	return 0;
}

/* Does `count` extents at the same time, a unit of each in turn, beginning with the last one if `backward`. */
static void run(struct setting *s, const uint32_t *extents, unsigned count, bool backward)
{
	struct digest_cursor cursors[MAX_EXTENTS];
	bool more = true;

	for (unsigned i = 0; i < count; i++)
		cr_assert_eq(digest_cursor_init(&cursors[i], &s->digest), 0);
	for (uint32_t step = 0; more; step++) {
		more = false;
		for (unsigned k = 0; k < count; k++) {
			unsigned i = backward ? count - 1 - k : k;
			const struct extent *extent = &s->units.extents[extents[i]];
			struct adding adding = {s, &cursors[i]};
			if (step >= extent->unit_count)
				continue;
			const struct unit *unit = &s->units.units[extent->first_unit + step];
			digest_begin(&cursors[i], extents[i]);
			scatter(&s->plan, unit->file, unit->begin, unit->bytes, s->data[unit->file] + unit->begin, add,
				&adding);
			if (step + 1 == extent->unit_count)
				digest_end(&cursors[i]);
			more = true;
		}
	}
	for (unsigned i = 0; i < count; i++)
		digest_cursor_fini(&cursors[i]);
}

/* All blocks that are done are right; how many are not. */
static unsigned check(const struct setting *s)
{
	const struct digest_segment *segment = &s->digest.segments[0];
	unsigned left = 0;

	for (uint64_t i = 0; i < segment->block_count; i++) {
		struct hash128 want = hash_block(s->segment, segment->bytes, i);
		if (segment->states[i] != BLOCK_DONE)
			left++;
		else
			cr_expect_eq(memcmp(&segment->blocks[i], &want, sizeof(want)), 0, "block %lu",
				     (unsigned long)i);
	}
	return left;
}

/* Extents in that order, so many at a time. */
static unsigned run_all(unsigned shards, uint64_t bytes, uint64_t extent_bytes, bool backward, unsigned at_a_time)
{
	struct setting s;
	uint32_t order[MAX_EXTENTS];

	setting_init(&s, shards, bytes, extent_bytes);
	uint32_t count = s.units.extent_count;
	cr_assert_geq(count, 3);
	for (uint32_t i = 0; i < count; i++)
		order[i] = backward ? count - 1 - i : i;
	for (uint32_t i = 0; i < count; i += at_a_time)
		run(&s, order + i, count - i < at_a_time ? count - i : at_a_time, backward);
	unsigned left = check(&s);
	setting_fini(&s);
	return left;
}

Test(loader_digest, a_block_is_handed_over_whichever_side_is_first)
{
	/* One file of 21 MiB in extents of 4 and of 8: each shares a block with the next one. */
	for (uint64_t extent = 4 * MIB; extent <= 8 * MIB; extent *= 2) {
		for (unsigned at_a_time = 1; at_a_time <= MAX_EXTENTS; at_a_time *= 2) {
			cr_expect_eq(run_all(1, 21 * MIB + 5, extent, false, at_a_time), 0);
			cr_expect_eq(run_all(1, 21 * MIB + 5, extent, true, at_a_time), 0);
		}
	}
}

Test(loader_digest, shards_of_odd_sizes_share_blocks_too)
{
	for (unsigned at_a_time = 1; at_a_time <= 8; at_a_time *= 2) {
		cr_expect_eq(run_all(4, 7 * MIB + 3, 7 * MIB, false, at_a_time), 0);
		cr_expect_eq(run_all(4, 7 * MIB + 3, 7 * MIB, true, at_a_time), 0);
	}
}

Test(loader_digest, a_block_of_three_extents_is_left_to_the_end)
{
	/* Files of 1 MiB, an extent each: four in a block. */
	cr_expect_eq(run_all(10, MIB, MIB / 2, false, 1), 3);
	cr_expect_eq(run_all(10, MIB, MIB / 2, true, 3), 3);
}

Test(loader_digest, what_one_side_left_is_freed_when_the_other_never_comes)
{
	struct setting s;
	const uint32_t right[] = {1, 2};

	setting_init(&s, 1, 21 * MIB + 5, 4 * MIB);
	run(&s, right, 2, false);
	cr_expect_gt(check(&s), 0);
	setting_fini(&s);
}
