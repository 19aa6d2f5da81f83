/* See digest.h. */
#include "loader/digest.h"

#include <errno.h>
#include <stdlib.h>

static const uint8_t zeros[4096];

void digest_fini(struct digest *digest)
{
	for (uint32_t i = 0; i < digest->segment_count; i++) {
		free(digest->segments[i].blocks);
		free(digest->segments[i].states);
	}
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

/* Marks the block in which one extent ends and the next one begins. Units and reads are walked side by side. */
static void mark_shared(struct digest *digest, const struct plan *plan, const struct units *units)
{
	struct span before = {0};
	uint32_t read = 0;

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
		if (before.any && before.last_segment == span.first_segment &&
		    before.last / HASH_BLOCK_BYTES == span.first / HASH_BLOCK_BYTES)
			digest->segments[span.first_segment].states[span.first / HASH_BLOCK_BYTES] = BLOCK_SHARED;
		before = span;
	}
}

int digest_init(struct digest *digest, const struct plan *plan, const struct units *units)
{
	struct digest made = {.segments = calloc((size_t)plan->segment_count + 1, sizeof(*made.segments))};

	if (made.segments == NULL)
		return -ENOMEM;
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
	mark_shared(&made, plan, units);
	*digest = made;
	return 0;
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

void digest_end(struct digest_cursor *cursor)
{
	if (!cursor->active)
		return;
	struct digest_segment *segment = &cursor->digest->segments[cursor->segment];
	uint64_t end = (cursor->block + 1) * HASH_BLOCK_BYTES;
	add_zeros(cursor, end < segment->bytes ? end : segment->bytes);
	segment->blocks[cursor->block] = checksum_hash(cursor->sum);
	segment->states[cursor->block] = BLOCK_DONE;
	cursor->active = false;
}

/* All within one block. */
static void add_to_block(struct digest_cursor *cursor, uint32_t segment, uint64_t offset, const void *bytes,
			 uint64_t length)
{
	uint64_t block = offset / HASH_BLOCK_BYTES;

	if (!cursor->active || cursor->segment != segment || cursor->block != block) {
		digest_end(cursor);
		if (cursor->digest->segments[segment].states[block] != BLOCK_OPEN)
			return;
		checksum_restart(cursor->sum);
		cursor->active = true;
		cursor->segment = segment;
		cursor->block = block;
		cursor->at = block * HASH_BLOCK_BYTES;
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
