/* See digest.h. */
#include "loader/digest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t zeros[4096];

void digest_fini(struct digest *digest)
{
	for (uint32_t i = 0; i < digest->segment_count; i++) {
		free(digest->segments[i].blocks);
		free(digest->segments[i].states);
	}
	for (uint32_t i = 0; digest->seams != NULL && i < digest->extent_count; i++) {
		if (digest->seams[i].exists)
			seam_fini(&digest->seams[i]);
	}
	free(digest->seams);
	free(digest->ends);
	free(digest->segments);
	*digest = (struct digest){0};
}

/* Where along the segments a range of reads begins and ends. */
struct span {
	bool any;
	uint32_t first_segment, last_segment;
	uint64_t first, last; /* offsets of the first and the last byte */
};

/* Widens the span by what the read puts into the segments out of [begin, end) of its file. */
static void span_add(struct span *span, const struct plan_read *read, uint64_t begin, uint64_t end)
{
	uint64_t row = 0, skip = 0, last_row = read->rows - 1, last = read->bytes - 1;

	if (read->file_offset >= end || plan_read_end(read) <= begin)
		return;
	if (begin > read->file_offset) {
		uint64_t distance = begin - read->file_offset;
		row = read->rows > 1 ? distance / read->stride : 0;
		skip = distance - row * read->stride;
		if (skip >= read->bytes) {
			row++;
			skip = 0;
		}
	}
	if (end < plan_read_end(read)) {
		uint64_t distance = end - 1 - read->file_offset;
		last_row = read->rows > 1 ? distance / read->stride : 0;
		last = distance - last_row * read->stride;
		if (last >= read->bytes)
			last = read->bytes - 1;
	}
	if (row > last_row || (row == last_row && skip > last))
		return;
	if (!span->any) {
		span->first_segment = read->segment;
		span->first = read->offset + row * read->bytes + skip;
	}
	span->any = true;
	span->last_segment = read->segment;
	span->last = read->offset + last_row * read->bytes + last;
}

/* Extent `right` begins in the block in which extent `left` ends. */
static int add_seam(struct digest *digest, uint32_t left, uint32_t right, uint32_t segment, uint64_t block)
{
	struct seam *before = &digest->seams[left], *seam = &digest->seams[right];

	digest->segments[segment].states[block] = BLOCK_SHARED;
	int r = seam_init(seam, segment, block);
	if (r < 0)
		return r;
	digest->ends[left] = right;
	/* Three extents in one block: read back. */
	if (before->exists && before->segment == segment && before->block == block)
		before->broken = seam->broken = true;
	return 0;
}

/* Finds the blocks in which one extent ends and the next one begins. Units and reads are walked side by side. */
static int find_seams(struct digest *digest, const struct plan *plan, const struct units *units)
{
	struct span before = {0};
	uint32_t read = 0, left = 0;

	for (uint32_t e = 0; e < units->extent_count; e++) {
		const struct extent *extent = &units->extents[e];
		struct span span = {0};
		for (uint64_t u = extent->first_unit; u < extent->first_unit + extent->unit_count; u++) {
			const struct unit *unit = &units->units[u];
			while (read < plan->read_count && (plan->reads[read].file < unit->file ||
							   (plan->reads[read].file == unit->file &&
							    plan_read_end(&plan->reads[read]) <= unit->begin)))
				read++;
			for (uint32_t i = read; i < plan->read_count && plan->reads[i].file == unit->file &&
						plan->reads[i].file_offset < unit->begin + unit->bytes;
			     i++)
				span_add(&span, &plan->reads[i], unit->begin, unit->begin + unit->bytes);
		}
		if (!span.any)
			continue;
		uint64_t block = span.first / HASH_BLOCK_BYTES;
		int r = 0;
		if (before.any && before.last_segment == span.first_segment && before.last / HASH_BLOCK_BYTES == block)
			r = add_seam(digest, left, e, span.first_segment, block);
		if (r < 0)
			return r;
		before = span;
		left = e;
	}
	return 0;
}

int digest_init(struct digest *digest, const struct plan *plan, const struct units *units)
{
	struct digest made = {.segments = calloc((size_t)plan->segment_count + 1, sizeof(*made.segments)),
			      .seams = calloc((size_t)units->extent_count + 1, sizeof(*made.seams)),
			      .ends = calloc((size_t)units->extent_count + 1, sizeof(*made.ends)),
			      .extent_count = units->extent_count};

	if (made.segments == NULL || made.seams == NULL || made.ends == NULL) {
		digest_fini(&made);
		return -ENOMEM;
	}
	made.segment_count = plan->segment_count;
	for (uint32_t i = 0; i < plan->segment_count; i++) {
		struct digest_segment *segment = &made.segments[i];
		segment->bytes = plan->segment_bytes[i];
		segment->block_count = hash_block_count(segment->bytes);
		segment->blocks = calloc(segment->block_count + 1, sizeof(*segment->blocks));
		segment->states = calloc(segment->block_count + 1, sizeof(*segment->states));
		if (segment->blocks == NULL || segment->states == NULL) {
			digest_fini(&made);
			return -ENOMEM;
		}
	}
	int r = find_seams(&made, plan, units);
	if (r < 0)
		digest_fini(&made);
	else
		*digest = made;
	return r;
}

int digest_cursor_init(struct digest_cursor *cursor, struct digest *digest)
{
	*cursor = (struct digest_cursor){.digest = digest, .sum = checksum_new()};
	return cursor->sum != NULL ? 0 : -ENOMEM;
}

void digest_cursor_fini(struct digest_cursor *cursor)
{
	if (cursor->sum != NULL)
		checksum_free(cursor->sum);
	cursor->sum = NULL;
}

static void add_zeros(struct digest_cursor *cursor, uint64_t until)
{
	while (cursor->at < until) {
		uint64_t left = until - cursor->at;
		uint64_t piece = left < sizeof(zeros) ? left : sizeof(zeros);
		checksum_add(cursor->sum, zeros, piece);
		cursor->at += piece;
	}
}

static uint64_t block_end(const struct digest_segment *segment, uint64_t block)
{
	uint64_t end = (block + 1) * HASH_BLOCK_BYTES;

	return end < segment->bytes ? end : segment->bytes;
}

/* The other side is done: the block is finished here, with what it holds. */
static void add_held(struct digest_cursor *cursor, struct seam *seam)
{
	add_zeros(cursor, seam->begin);
	checksum_add(cursor->sum, seam->held, seam->end - seam->begin);
	cursor->at = seam->end;
	free(seam->held);
	seam->held = NULL;
	atomic_fetch_sub(&cursor->digest->held, seam->end - seam->begin);
}

void digest_begin(struct digest_cursor *cursor, uint32_t extent)
{
	cursor->extent = extent;
}

void digest_end(struct digest_cursor *cursor)
{
	struct seam *seam = cursor->seam;
	bool last = true;

	if (!cursor->active)
		return;
	cursor->active = false;
	cursor->seam = NULL;
	if (seam != NULL) {
		last = cursor->holding ? seam_leave_right(seam, &cursor->sum, &cursor->at)
				       : seam_leave_left(seam, &cursor->sum, cursor->at);
		if (last)
			add_held(cursor, seam);
	}
	cursor->holding = false;
	if (!last)
		return;
	struct digest_segment *segment = &cursor->digest->segments[cursor->segment];
	add_zeros(cursor, block_end(segment, cursor->block));
	segment->blocks[cursor->block] = checksum_hash(cursor->sum);
	segment->states[cursor->block] = BLOCK_DONE;
}

static bool is_there(const struct seam *seam, uint32_t segment, uint64_t block)
{
	return seam->exists && !seam->broken && seam->segment == segment && seam->block == block;
}

/* A block in which the extent begins or ends. False: it is left to the end. */
static bool enter_seam(struct digest_cursor *cursor, uint32_t segment, uint64_t block, uint64_t offset)
{
	struct digest *digest = cursor->digest;
	struct seam *right = &digest->seams[cursor->extent], *left = &digest->seams[digest->ends[cursor->extent]];

	if (is_there(right, segment, block)) {
		if (right->given_up)
			return false;
		uint64_t end = block_end(&digest->segments[segment], block);
		bool room = atomic_fetch_add(&digest->held, end - offset) + (end - offset) <= DIGEST_MOST_HELD;
		bool taken = seam_enter_right(right, &cursor->sum, &cursor->at, offset, end, room);
		cursor->holding = !taken && !right->given_up;
		if (cursor->holding)
			cursor->seam = right;
		else
			atomic_fetch_sub(&digest->held, end - offset);
		return taken || cursor->holding;
	}
	/* Number 0 is no seam: no extent comes before the first. */
	if (digest->ends[cursor->extent] == 0 || !is_there(left, segment, block))
		return false;
	checksum_restart(cursor->sum);
	cursor->at = block * HASH_BLOCK_BYTES;
	cursor->seam = left;
	return true;
}

static bool enter_block(struct digest_cursor *cursor, uint32_t segment, uint64_t block, uint64_t offset)
{
	enum block_state state = (enum block_state)cursor->digest->segments[segment].states[block];

	cursor->seam = NULL;
	if (state == BLOCK_DONE || (state == BLOCK_SHARED && !enter_seam(cursor, segment, block, offset)))
		return false;
	if (state == BLOCK_OPEN) {
		checksum_restart(cursor->sum);
		cursor->at = block * HASH_BLOCK_BYTES;
	}
	cursor->active = true;
	cursor->segment = segment;
	cursor->block = block;
	return true;
}

/* All within one block. */
static void add_to_block(struct digest_cursor *cursor, uint32_t segment, uint64_t offset, const void *bytes,
			 uint64_t length)
{
	uint64_t block = offset / HASH_BLOCK_BYTES;

	if (!cursor->active || cursor->segment != segment || cursor->block != block) {
		digest_end(cursor);
		if (!enter_block(cursor, segment, block, offset))
			return;
	}
	if (cursor->holding) {
		memcpy(cursor->seam->held + (offset - cursor->seam->begin), bytes, length);
		return;
	}
	add_zeros(cursor, offset);
	checksum_add(cursor->sum, bytes, length);
	cursor->at += length;
}

void digest_add(struct digest_cursor *cursor, uint32_t segment, uint64_t offset, const void *bytes, uint64_t length)
{
	const uint8_t *at = bytes;

	while (length > 0) {
		uint64_t room = HASH_BLOCK_BYTES - offset % HASH_BLOCK_BYTES;
		uint64_t piece = length < room ? length : room;
		add_to_block(cursor, segment, offset, at, piece);
		at += piece;
		offset += piece;
		length -= piece;
	}
}
