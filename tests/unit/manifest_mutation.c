/*
 * Every byte of a complete manifest is damaged in many ways, one at a time, with the checksum made right again: what
 * the validator then accepts must be safe to use, what it refuses must be named, and the reader alone must not fault
 * on either. The bytes end where a page that cannot be read begins.
 */
#include "manifest/validate.h"
#include "tests/unit/leaks.h"
#include "tests/unit/manifest_sample.h"

#include <criterion/criterion.h>
#include <sys/mman.h>

TestSuite(manifest_mutation, .init = leaks_before, .fini = leaks_after);

struct guarded {
	uint8_t *pages;
	size_t pages_bytes;
	uint8_t *bytes;
	size_t length;
};

static void guarded_init(struct guarded *g, const struct sample *sample)
{
	const size_t page = 4096;

	cr_assert_eq(sample->length % 8, 0, "the sample must end at a multiple of 8 to touch the page's end");
	g->length = sample->length;
	g->pages_bytes = align_up(g->length, page) + page;
	g->pages = mmap(NULL, g->pages_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(g->pages, MAP_FAILED);
	g->bytes = g->pages + g->pages_bytes - page - g->length;
	cr_assert_eq(mprotect(g->pages + g->pages_bytes - page, page, PROT_NONE), 0);
	memcpy(g->bytes, sample->bytes, g->length);
}

static void guarded_fini(struct guarded *g)
{
	munmap(g->pages, g->pages_bytes);
}

static bool names_a_place(const char *message)
{
	static const char *const places[] = {"header.", "fields[",  "segments[",  "tensors[",
					     "index[",	"sources[", "attributes["};
	for (size_t i = 0; i < array_length(places); i++)
		if (strstr(message, places[i]) != NULL)
			return strncmp(message, "manifest: ", 10) == 0 && strstr(message, " at offset ") != NULL;
	return false;
}

struct tally {
	unsigned accepted;
	unsigned refused;
};

/* Keeps the compiler from leaving the walks out. */
static volatile uint64_t walked;

static void try_mutant(struct guarded *g, size_t offset, struct tally *tally)
{
	struct ipcc_error err = {0};
	struct manifest m;

	sample_reseal(g->bytes, g->length);
	/* Unvalidated, as an engine reads what an authenticated broker sent. */
	if (manifest_init(&m, g->bytes, g->length, false, NULL) == 0)
		walked += walk_manifest(&m);
	if (manifest_validate(g->bytes, g->length, &err) != 0) {
		cr_assert_eq(err.code, IPCC_INVALID, "at %zu: %s", offset, err.message);
		cr_assert(names_a_place(err.message), "at %zu: %s", offset, err.message);
		tally->refused++;
		return;
	}
	cr_assert_eq(manifest_init(&m, g->bytes, g->length, true, NULL), 0);
	struct ipcc_tensor t;
	struct ipcc_segment s;
	for (uint32_t i = 0; i < manifest_count(&m, SECTION_TENSORS); i++) {
		cr_assert_eq(manifest_tensor(&m, i, &t, NULL), 0);
		cr_assert_eq(manifest_find(&m, t.name), i);
	}
	for (uint32_t i = 0; i < manifest_count(&m, SECTION_SEGMENTS); i++)
		cr_assert_eq(manifest_segment(&m, i, &s, NULL), 0);
	walked += walk_manifest(&m);
	tally->accepted++;
}

static void try_value(struct guarded *g, size_t offset, size_t bytes, uint64_t value, struct tally *tally)
{
	uint8_t before[8];
	le64 wire = le64_make(value);

	memcpy(before, g->bytes + offset, bytes);
	memcpy(g->bytes + offset, &wire, bytes); /* little-endian: the low bytes come first */
	if (memcmp(before, g->bytes + offset, bytes) != 0)
		try_mutant(g, offset, tally);
	memcpy(g->bytes + offset, before, bytes);
}

Test(manifest_mutation, each_damaged_byte_is_refused_by_name_or_harmless, .timeout = 600)
{
	struct sample sample;
	struct guarded g;
	struct tally tally = {0};

	sample_init(&sample);
	guarded_init(&g, &sample);
	for (size_t at = 0; at < g.length; at++) {
		uint8_t old = g.bytes[at];
		for (unsigned bit = 0; bit < 8; bit++)
			try_value(&g, at, 1, old ^ (1u << bit), &tally);
		try_value(&g, at, 1, 0, &tally);
		try_value(&g, at, 1, 0xff, &tally);
		try_value(&g, at, 1, (uint8_t)(old + 1), &tally);
		try_value(&g, at, 1, (uint8_t)(old - 1), &tally);
	}
	cr_log_info("%zu bytes: %u mutants accepted, %u refused", g.length, tally.accepted, tally.refused);
	cr_assert_gt(tally.refused, tally.accepted);
	cr_assert_gt(tally.accepted, 0);
	guarded_fini(&g);
	sample_fini(&sample);
}

Test(manifest_mutation, each_extreme_number_is_refused_by_name_or_harmless, .timeout = 600)
{
	static const size_t widths[] = {2, 4, 8};
	struct sample sample;
	struct guarded g;
	struct tally tally = {0};

	sample_init(&sample);
	guarded_init(&g, &sample);
	for (size_t w = 0; w < array_length(widths); w++) {
		uint64_t max = UINT64_MAX >> (64 - 8 * widths[w]);
		const uint64_t values[] = {0,
					   1,
					   2,
					   max,
					   max - 1,
					   max / 2,
					   max / 2 + 1,
					   (uint64_t)1 << 31,
					   (uint64_t)1 << 32,
					   (uint64_t)1 << 61,
					   g.length,
					   g.length + 1};
		for (size_t at = 0; at + widths[w] <= g.length; at += widths[w])
			for (size_t i = 0; i < array_length(values); i++)
				try_value(&g, at, widths[w], values[i] & max, &tally);
	}
	cr_log_info("%u mutants accepted, %u refused", tally.accepted, tally.refused);
	cr_assert_gt(tally.refused, tally.accepted);
	guarded_fini(&g);
	sample_fini(&sample);
}

Test(manifest_mutation, a_manifest_cut_anywhere_is_refused)
{
	struct sample sample;
	struct guarded g;
	struct ipcc_error err;

	sample_init(&sample);
	guarded_init(&g, &sample);
	for (size_t length = g.length - 8; length > 0; length -= 8) {
		uint8_t *cut = g.bytes + g.length - length;
		memmove(cut, sample.bytes, length);
		/* Once as it was cut, once with a header that says so. */
		cr_assert_eq(manifest_validate(cut, length, &err), IPCC_INVALID);
		cr_assert(names_a_place(err.message), "%s", err.message);
		if (length < sizeof(struct manifest_header))
			continue;
		((struct manifest_header *)cut)->total_bytes = le64_make(length);
		sample_reseal(cut, length);
		cr_assert_eq(manifest_validate(cut, length, &err), IPCC_INVALID);
		cr_assert(names_a_place(err.message), "%s", err.message);
	}
	guarded_fini(&g);
	sample_fini(&sample);
}
