/* The journal: what is written comes back in order, damage ends it, and it stays small. */
#include "broker/journal.h"
#include "manifest/fd.h"
#include "tests/unit/leaks.h"

#include <criterion/criterion.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(journal, .init = leaks_before, .fini = leaks_after);

struct replayed {
	unsigned count;
	uint64_t models[64];
};

static void note(const struct journal_record *record, void *context)
{
	struct replayed *r = context;
	if (r->count < 64)
		r->models[r->count] = le64_get(record->model);
	r->count++;
}

static void no_snapshot(struct journal *journal, void *context)
{
	(void)journal, (void)context;
	cr_assert_fail("the journal was rewritten too early");
}

/* The living state of the rewriting test: one model. */
static void one_model(struct journal *journal, void *context)
{
	unsigned *calls = context;
	(*calls)++;
	struct journal_record record = {.kind = le32_make(JOURNAL_READY), .model = le64_make(7)};
	cr_assert_eq(journal_append(journal, record, NULL), IPCC_OK);
}

static struct journal *journal_of(unsigned records)
{
	struct journal *journal = journal_new(no_snapshot, NULL, NULL);
	cr_assert_not_null(journal);
	for (unsigned i = 0; i < records; i++) {
		struct journal_record record = {.kind = le32_make(JOURNAL_LEASE), .model = le64_make(100 + i)};
		cr_assert_eq(journal_append(journal, record, NULL), IPCC_OK);
	}
	return journal;
}

Test(journal, gives_back_every_record_in_order)
{
	struct journal *journal = journal_of(5);
	struct replayed r = {0};
	cr_assert_eq(journal_replay(journal_fd(journal), note, &r), 5);
	for (unsigned i = 0; i < 5; i++)
		cr_assert_eq(r.models[i], 100 + i);
	journal_free(journal);
}

Test(journal, an_empty_one_has_no_records)
{
	struct journal *journal = journal_of(0);
	struct replayed r = {0};
	cr_assert_eq(journal_replay(journal_fd(journal), note, &r), 0);
	journal_free(journal);
}

Test(journal, a_record_cut_off_by_a_kill_is_as_if_never_written)
{
	struct journal *journal = journal_of(3);
	for (off_t cut = 1; cut < (off_t)sizeof(struct journal_record); cut++) {
		struct replayed r = {0};
		cr_assert_eq(ftruncate(journal_fd(journal), 3 * (off_t)sizeof(struct journal_record) - cut), 0);
		cr_assert_eq(journal_replay(journal_fd(journal), note, &r), 2);
	}
	journal_free(journal);
}

Test(journal, a_damaged_byte_anywhere_ends_the_replay_before_it)
{
	struct journal *journal = journal_of(3);
	for (off_t at = 0; at < (off_t)sizeof(struct journal_record); at++) {
		uint8_t byte, flipped;
		off_t place = (off_t)sizeof(struct journal_record) + at;
		struct replayed r = {0};
		cr_assert_eq(pread(journal_fd(journal), &byte, 1, place), 1);
		flipped = byte ^ 0x10;
		cr_assert_eq(pwrite(journal_fd(journal), &flipped, 1, place), 1);
		cr_assert_eq(journal_replay(journal_fd(journal), note, &r), 1, "byte %d", (int)at);
		cr_assert_eq(pwrite(journal_fd(journal), &byte, 1, place), 1);
	}
	journal_free(journal);
}

/* A world of one model, whose record is written before the world changes, as the broker does. */
struct world {
	bool resident;
	struct journal *journal;
};

static void world_snapshot(struct journal *journal, void *context)
{
	struct world *world = context;
	struct journal_record record = {.kind = le32_make(JOURNAL_READY), .model = le64_make(7)};
	if (world->resident)
		cr_assert_eq(journal_append(journal, record, NULL), IPCC_OK);
}

static void replay_world(const struct journal_record *record, void *context)
{
	bool *resident = context;
	if (le64_get(record->model) == 7)
		*resident = le32_get(record->kind) == JOURNAL_READY;
}

Test(journal, says_what_is_true_at_every_moment_of_a_rewrite)
{
	struct world world = {0};
	world.journal = journal_new(world_snapshot, &world, NULL);
	for (unsigned i = 0; i < 100000; i++) {
		struct journal_record record = {.kind = le32_make(world.resident ? JOURNAL_GONE : JOURNAL_READY),
						.model = le64_make(7)};
		cr_assert_eq(journal_append(world.journal, record, NULL), IPCC_OK);
		world.resident = !world.resident;
		if (i < 32000 || i % 32768 > 40)
			continue;
		bool replayed = false;
		cr_assert_gt(journal_replay(journal_fd(world.journal), replay_world, &replayed), 0);
		cr_assert_eq(replayed, world.resident, "after %u records", i + 1);
	}
	journal_free(world.journal);
}

Test(journal, stays_small_however_much_happens)
{
	unsigned rewrites = 0;
	struct journal *journal = journal_new(one_model, &rewrites, NULL);
	struct stat st;
	for (unsigned i = 0; i < 300000; i++) {
		struct journal_record record = {.kind = le32_make(i % 2 ? JOURNAL_LEASE_END : JOURNAL_LEASE),
						.conn = le64_make(i / 2)};
		cr_assert_eq(journal_append(journal, record, NULL), IPCC_OK);
	}
	cr_assert_gt(rewrites, 0);
	cr_assert_eq(fstat(journal_fd(journal), &st), 0);
	cr_assert_lt(st.st_size, 4 << 20);
	struct replayed r = {0};
	cr_assert_gt(journal_replay(journal_fd(journal), note, &r), 0);
	cr_assert_eq(r.models[0], 7, "the living state comes first");
	journal_free(journal);
}
