/*
 * Finishing a builder: sort, index, lay out, copy, checksum, and let the validator say whether this is a manifest.
 *
 * Strings and attribute data are copied with the entries they belong to, in the entries' final order.
 */
#include "manifest/builder_state.h"
#include "manifest/fail.h"
#include "manifest/fd.h"
#include "manifest/validate.h"

#include <stdlib.h>

static const uint32_t entry_bytes[SECTION_COUNT] = {
	[SECTION_FIELDS] = sizeof(struct manifest_field),
	[SECTION_SEGMENTS] = sizeof(struct manifest_segment),
	[SECTION_TENSORS] = sizeof(struct manifest_tensor),
	[SECTION_INDEX] = sizeof(le32),
	[SECTION_SOURCES] = sizeof(struct manifest_source),
	[SECTION_BLOCKS] = sizeof(struct manifest_block),
	[SECTION_ATTRIBUTES] = sizeof(struct manifest_attribute),
	[SECTION_STRINGS] = 1,
	[SECTION_DATA] = 1,
};

/* The manifest that is being written; strings_used and data_used grow as entries are copied. */
struct output {
	uint8_t *bytes;
	uint64_t total_bytes;
	uint64_t offsets[SECTION_COUNT];
	uint32_t counts[SECTION_COUNT];
	uint32_t strings_used;
	uint64_t data_used;
};

static void *section_of(struct output *out, enum manifest_section_id section)
{
	return out->bytes + out->offsets[section];
}

static void copy_string(const struct builder *b, struct output *out, struct manifest_string *s)
{
	uint32_t bytes = le32_get(s->bytes);
	const uint8_t *from = b->entries[SECTION_STRINGS].bytes + le32_get(s->offset);

	memcpy((uint8_t *)section_of(out, SECTION_STRINGS) + out->strings_used, from, bytes + 1);
	s->offset = le32_make(out->strings_used);
	out->strings_used += bytes + 1;
}

static int compare_texts(const uint8_t *strings, struct manifest_string a, struct manifest_string b)
{
	/* The pool has NUL-terminated strings, and strcmp orders bytes. */
	return strcmp((const char *)strings + le32_get(a.offset), (const char *)strings + le32_get(b.offset));
}

/* For entries that begin with their name. */
static int compare_names(const void *left, const void *right, void *strings)
{
	return compare_texts(strings, *(const struct manifest_string *)left, *(const struct manifest_string *)right);
}

static void sort_by_name(struct builder *b, enum manifest_section_id section)
{
	if (b->counts[section] > 1)
		qsort_r(b->entries[section].bytes, b->counts[section], entry_bytes[section], compare_names,
			b->entries[SECTION_STRINGS].bytes);
}

struct tensor_rank {
	uint64_t offset;
	uint32_t segment;
	uint32_t alias;
	uint32_t number; /* in the order of adding */
};

static int compare_ranks(const void *left, const void *right)
{
	const struct tensor_rank *a = left, *b = right;
	if (a->segment != b->segment)
		return a->segment < b->segment ? -1 : 1;
	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	if (a->alias != b->alias)
		return a->alias < b->alias ? -1 : 1;
	return a->number < b->number ? -1 : a->number > b->number;
}

/* Puts the tensors in their final order, and alias_of with them. */
static int sort_tensors(struct builder *b, struct ipcc_error *err)
{
	uint32_t count = b->counts[SECTION_TENSORS];
	const struct manifest_tensor *from = (const struct manifest_tensor *)b->entries[SECTION_TENSORS].bytes;
	if (count == 0)
		return 0;

	cleanup_free struct tensor_rank *ranks = malloc(count * sizeof(*ranks));
	cleanup_free uint32_t *moved = malloc(count * sizeof(*moved));
	struct manifest_tensor *sorted = malloc(count * sizeof(*sorted));
	if (ranks == NULL || moved == NULL || sorted == NULL) {
		free(sorted);
		return fail(err, IPCC_NO_MEMORY, "builder: no memory to sort %u tensors", count);
	}
	for (uint32_t i = 0; i < count; i++)
		ranks[i] = (struct tensor_rank){le64_get(from[i].offset), le32_get(from[i].segment),
						le32_get(from[i].flags) & IPCC_TENSOR_ALIAS, i};
	qsort(ranks, count, sizeof(*ranks), compare_ranks);
	for (uint32_t i = 0; i < count; i++) {
		sorted[i] = from[ranks[i].number];
		moved[ranks[i].number] = i;
	}
	for (uint32_t i = 0; i < count; i++) {
		uint32_t owner = le32_get(sorted[i].alias_of);
		if ((le32_get(sorted[i].flags) & IPCC_TENSOR_ALIAS) && owner < count) /* else the validator names it */
			sorted[i].alias_of = le32_make(moved[owner]);
	}
	free(b->entries[SECTION_TENSORS].bytes);
	b->entries[SECTION_TENSORS].bytes = (uint8_t *)sorted;
	return 0;
}

static int make_index(const struct builder *b, le32 **slots, uint32_t *slot_count, uint64_t *seed,
		      struct ipcc_error *err)
{
	uint32_t count = b->counts[SECTION_TENSORS], slots_tried = builder_index_slots(count);
	int result = count == 0 ? 0 : 1;
	le32 *made = NULL;

	*seed = 0;
	for (; result == 1; slots_tried *= 2) {
		free(made);
		made = NULL;
		if ((uint64_t)slots_tried * sizeof(le32) > MANIFEST_MAX_BYTES)
			return fail(err, IPCC_REFUSED, "builder: no index over %u names fits into a manifest", count);
		made = malloc(slots_tried * sizeof(le32));
		if (made == NULL)
			return fail(err, IPCC_NO_MEMORY, "builder: no memory for an index of %u slots", slots_tried);
		*slot_count = slots_tried;
		result = builder_index_fill((const struct manifest_tensor *)b->entries[SECTION_TENSORS].bytes, count,
					    b->entries[SECTION_STRINGS].bytes, made, slots_tried, seed, err);
	}
	if (result != 0) {
		free(made);
		return result;
	}
	*slots = made;
	return 0;
}

/* Every entry that has strings begins with them. */
static const uint32_t strings_per_entry[SECTION_COUNT] = {
	[SECTION_FIELDS] = 2,  [SECTION_SEGMENTS] = 1,	 [SECTION_TENSORS] = 1,
	[SECTION_SOURCES] = 1, [SECTION_ATTRIBUTES] = 2,
};

static struct manifest_string *string_of(uint8_t *entries, enum manifest_section_id section, uint32_t i, uint32_t k)
{
	return (struct manifest_string *)(entries + (size_t)i * entry_bytes[section]) + k;
}

/* Not the pool's size: an addition that failed has left its strings there. */
static uint64_t count_string_bytes(const struct builder *b)
{
	uint64_t total = le32_get(b->name.bytes) + 1;

	for (uint32_t section = 0; section < SECTION_COUNT; section++)
		for (uint32_t i = 0; i < b->counts[section]; i++)
			for (uint32_t k = 0; k < strings_per_entry[section]; k++)
				total += le32_get(string_of(b->entries[section].bytes, section, i, k)->bytes) + 1;
	return total;
}

static int lay_out(const struct builder *b, struct output *out, uint32_t slot_count, struct ipcc_error *err)
{
	uint64_t end = sizeof(struct manifest_header);

	memcpy(out->counts, b->counts, sizeof(out->counts));
	out->counts[SECTION_INDEX] = slot_count;
	out->counts[SECTION_STRINGS] = (uint32_t)count_string_bytes(b);
	out->counts[SECTION_DATA] = (uint32_t)b->entries[SECTION_DATA].used;
	for (uint32_t i = 0; i < SECTION_COUNT; i++) {
		out->offsets[i] = align_up(end, MANIFEST_ALIGNMENT);
		end = out->offsets[i] + (uint64_t)out->counts[i] * entry_bytes[i];
	}
	if (end > MANIFEST_MAX_BYTES)
		return fail(err, IPCC_REFUSED,
			    "builder: the manifest would have %llu bytes, the limit is %llu; use fewer tensors or "
			    "smaller attributes",
			    (unsigned long long)end, (unsigned long long)MANIFEST_MAX_BYTES);
	out->total_bytes = end;
	out->bytes = aligned_alloc(MANIFEST_ALIGNMENT, align_up(end, MANIFEST_ALIGNMENT));
	if (out->bytes == NULL)
		return fail(err, IPCC_NO_MEMORY, "builder: no memory for a manifest of %llu bytes",
			    (unsigned long long)end);
	memset(out->bytes, 0, end);
	return 0;
}

static void copy_entries(const struct builder *b, struct output *out)
{
	for (uint32_t section = 0; section < SECTION_STRINGS; section++) {
		uint8_t *entries = section_of(out, section);
		if (section == SECTION_INDEX || out->counts[section] == 0)
			continue;
		memcpy(entries, b->entries[section].bytes, (size_t)out->counts[section] * entry_bytes[section]);
		for (uint32_t i = 0; i < out->counts[section]; i++)
			for (uint32_t k = 0; k < strings_per_entry[section]; k++)
				copy_string(b, out, string_of(entries, section, i, k));
	}
}

static void copy_data(const struct builder *b, struct output *out)
{
	struct manifest_attribute *a = section_of(out, SECTION_ATTRIBUTES);

	for (uint32_t i = 0; i < out->counts[SECTION_ATTRIBUTES]; i++) {
		uint64_t bytes = le64_get(a[i].bytes);
		if (bytes > 0)
			memcpy((uint8_t *)section_of(out, SECTION_DATA) + out->data_used,
			       b->entries[SECTION_DATA].bytes + le64_get(a[i].offset), bytes);
		a[i].offset = le64_make(out->data_used);
		out->data_used += bytes;
	}
}

static void write_header(const struct builder *b, struct output *out, uint64_t seed)
{
	struct manifest_header *h = (struct manifest_header *)out->bytes;

	*h = (struct manifest_header){
		.major = le16_make(MANIFEST_MAJOR),
		.minor = le16_make(MANIFEST_MINOR),
		.header_bytes = le32_make(sizeof(*h)),
		.total_bytes = le64_make(out->total_bytes),
		.name = b->name,
		.block_bytes = le64_make(HASH_BLOCK_BYTES),
		.index_seed = le64_make(seed),
	};
	memcpy(h->magic, MANIFEST_MAGIC, sizeof(h->magic));
	for (uint32_t i = 0; i < SECTION_COUNT; i++)
		h->sections[i] = (struct manifest_section){le64_make(out->offsets[i]), le32_make(entry_bytes[i]),
							   le32_make(out->counts[i])};
	copy_string(b, out, &h->name);
}

static int write_manifest(const struct builder *b, struct output *out, struct ipcc_error *err)
{
	cleanup_free le32 *slots = NULL;
	uint32_t slot_count = 0;
	uint64_t seed;

	int code = make_index(b, &slots, &slot_count, &seed, err);
	if (code == 0)
		code = lay_out(b, out, slot_count, err);
	if (code != 0)
		return code;
	write_header(b, out, seed);
	copy_entries(b, out);
	copy_data(b, out);
	if (slot_count > 0)
		memcpy(section_of(out, SECTION_INDEX), slots, slot_count * sizeof(*slots));
	struct manifest_header *h = (struct manifest_header *)out->bytes;
	uint64_t checksum = 0;
	code = manifest_checksum(out->bytes, out->total_bytes, &checksum, err);
	if (code != 0)
		return code;
	h->checksum = le64_make(checksum);
	return manifest_validate(out->bytes, out->total_bytes, err);
}

int builder_finish(struct builder *b, void **bytes, size_t *length, struct ipcc_error *err)
{
	struct output out = {0};

	int code = sort_tensors(b, err);
	if (code != 0)
		return code;
	sort_by_name(b, SECTION_FIELDS);
	sort_by_name(b, SECTION_SOURCES);
	sort_by_name(b, SECTION_ATTRIBUTES);
	code = write_manifest(b, &out, err);
	if (code != 0) {
		free(out.bytes);
		return code;
	}
	*bytes = out.bytes;
	*length = out.total_bytes;
	return 0;
}
