/*
 * The validator's engine: a list of phases, each of which looks at one thing at a time (an entry, a piece of the bytes)
 * and counts the work that it did, in bytes touched. A step runs until its budget is spent, so that its time is bounded
 * whatever the manifest says: a thousand names that share one long string cost a thousand times that string, and are
 * charged so.
 *
 * The order of the phases matters: each relies on what those before it have established, and no further.
 */
#include "manifest/validate_state.h"

#include "manifest/fail.h"

#include <stdlib.h>

/* One or two tenths of a millisecond. The largest single unit of work (one name of 4096 bytes that is compared with
 * MANIFEST_MAX_PROBE others of that length) takes about half of that. */
#define STEP_WORK ((uint64_t)128 << 10)
/* Hashing is some ten times as fast as looking at each byte. */
#define HASH_PIECE	((uint64_t)64 << 10)
#define HASH_PIECE_WORK (HASH_PIECE / 8)

struct validator *validator_new(const void *bytes, uint64_t length)
{
	struct validator *v = calloc(1, sizeof(*v));
	if (v == NULL)
		return NULL;
	v->sum = checksum_new();
	if (v->sum == NULL) {
		free(v);
		return NULL;
	}
	v->bytes = bytes;
	v->length = length;
	return v;
}

void validator_free(struct validator *v)
{
	if (v == NULL)
		return;
	checksum_free(v->sum);
	free(v);
}

const struct manifest *validator_manifest(const struct validator *v)
{
	return &v->m;
}

static int open_manifest(struct validator *v, bool *done, struct ipcc_error *err)
{
	*done = true;
	return manifest_init(&v->m, v->bytes, v->length, false, err);
}

/* The next piece, with the checksum's own bytes as zeros; `at` counts pieces. */
static int check_checksum(struct validator *v, bool *done, struct ipcc_error *err)
{
	uint64_t offset = v->at++ * HASH_PIECE;
	uint64_t length = v->length - offset < HASH_PIECE ? v->length - offset : HASH_PIECE;

	v->work += HASH_PIECE_WORK;
	if (offset == 0) {
		struct manifest_header first = *v->m.header;
		first.checksum = le64_make(0);
		checksum_add(v->sum, &first, sizeof(first));
		checksum_add(v->sum, v->m.bytes + sizeof(first), length - sizeof(first));
	} else {
		checksum_add(v->sum, v->m.bytes + offset, length);
	}
	*done = offset + length == v->length;
	if (*done && checksum_value(v->sum) != le64_get(v->m.header->checksum))
		return manifest_refuse(v->m.bytes, IN_HEADER(v->m.header, checksum), err,
				       "the bytes do not match it: they are damaged");
	return 0;
}

/* Either looks at one thing by itself, or is a check of each entry of a section. */
static const struct {
	int (*look)(struct validator *v, bool *done, struct ipcc_error *err);
	enum manifest_section_id section;
	int (*entry)(struct validator *v, uint32_t i, struct ipcc_error *err);
} phases[] = {
	{.look = open_manifest},
	{.look = check_checksum},
	{.look = validate_header},
	{.section = SECTION_FIELDS, .entry = validate_field},
	{.section = SECTION_SEGMENTS, .entry = validate_segment},
	{.look = validate_blocks},
	{.section = SECTION_INDEX, .entry = validate_slot},
	{.look = validate_counts},
	{.section = SECTION_TENSORS, .entry = validate_tensor},
	{.section = SECTION_SOURCES, .entry = validate_source},
	{.section = SECTION_ATTRIBUTES, .entry = validate_attribute},
};

static int look_once(struct validator *v, bool *done, struct ipcc_error *err)
{
	enum manifest_section_id section = phases[v->phase].section;

	if (phases[v->phase].look != NULL)
		return phases[v->phase].look(v, done, err);
	*done = v->at >= v->m.counts[section];
	if (*done)
		return 0;
	v->work += v->m.strides[section];
	return phases[v->phase].entry(v, (uint32_t)v->at++, err);
}

enum validator_result validator_step(struct validator *v, struct ipcc_error *err)
{
	if (v->refused) {
		fail(err, IPCC_USAGE, "validator: a step after the refusal");
		return VALIDATOR_ERROR;
	}
	for (v->work = 0; v->phase < array_length(phases) && v->work < STEP_WORK;) {
		bool done = false;
		if (look_once(v, &done, err) != 0) {
			v->refused = true;
			return VALIDATOR_ERROR;
		}
		if (done) {
			v->phase++;
			v->at = 0;
		}
	}
	return v->phase < array_length(phases) ? VALIDATOR_MORE : VALIDATOR_DONE;
}

int manifest_validate(const void *bytes, uint64_t length, struct ipcc_error *err)
{
	struct validator *v = validator_new(bytes, length);
	struct ipcc_error refusal = {0};
	enum validator_result result;

	if (v == NULL)
		return fail(err, IPCC_NO_MEMORY, "manifest: no memory to check it");
	do
		result = validator_step(v, &refusal);
	while (result == VALIDATOR_MORE);
	validator_free(v);
	if (result == VALIDATOR_DONE)
		return 0;
	if (err != NULL)
		*err = refusal;
	return refusal.code;
}
