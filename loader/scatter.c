/* See scatter.h. */
#include "loader/scatter.h"

#include <string.h>

/* The number of the first read that ends behind `offset` of file `file`, or of a later file. */
static uint32_t first_read(const struct plan *plan, uint32_t file, uint64_t offset)
{
	uint32_t low = 0, high = plan->read_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		const struct plan_read *read = &plan->reads[middle];
		if (read->file < file || (read->file == file && read->file_offset + read->bytes <= offset))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

uint8_t *scatter_target(const struct plan *plan, void *const *segments, uint32_t file, uint64_t begin, uint64_t bytes)
{
	uint32_t i = first_read(plan, file, begin);

	if (i == plan->read_count)
		return NULL;
	const struct plan_read *read = &plan->reads[i];
	if (read->file != file || read->file_offset > begin || read->file_offset + read->bytes < begin + bytes)
		return NULL;
	return (uint8_t *)segments[read->segment] + read->offset + (begin - read->file_offset);
}

/* A part of a block, and where it goes. */
struct piece {
	uint32_t segment;
	uint64_t offset; /* in the segment */
	uint64_t bytes;
	const uint8_t *from;
};

/* The part of [begin, end) of that file, which lies at `from`, that read `i` wants; false when that was the last one. */
static bool next_piece(const struct plan *plan, uint32_t i, uint32_t file, uint64_t begin, uint64_t end,
		       const uint8_t *from, struct piece *piece)
{
	const struct plan_read *read = i < plan->read_count ? &plan->reads[i] : NULL;

	if (read == NULL || read->file != file || read->file_offset >= end)
		return false;
	uint64_t first = read->file_offset > begin ? read->file_offset : begin;
	uint64_t read_end = read->file_offset + read->bytes;
	*piece = (struct piece){
		.segment = read->segment,
		.offset = read->offset + (first - read->file_offset),
		.bytes = (read_end < end ? read_end : end) - first,
		.from = from + (first - begin),
	};
	return true;
}

void scatter_copy(const struct plan *plan, void *const *segments, uint32_t file, uint64_t begin, uint64_t bytes,
		  const uint8_t *from)
{
	struct piece piece;

	for (uint32_t i = first_read(plan, file, begin); next_piece(plan, i, file, begin, begin + bytes, from, &piece);
	     i++)
		memcpy((uint8_t *)segments[piece.segment] + piece.offset, piece.from, piece.bytes);
}

int scatter_write(const struct plan *plan, const struct sink *sink, uint32_t file, uint64_t begin, uint64_t bytes,
		  const uint8_t *from, struct ipcc_error *err)
{
	struct piece piece;
	int r = 0;

	for (uint32_t i = first_read(plan, file, begin);
	     r == 0 && next_piece(plan, i, file, begin, begin + bytes, from, &piece); i++)
		r = sink->write(sink->context, piece.segment, piece.offset, piece.from, piece.bytes, err);
	return r;
}
