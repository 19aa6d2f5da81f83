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

void scatter_copy(const struct plan *plan, void *const *segments, uint32_t file, uint64_t begin, uint64_t bytes,
		  const uint8_t *from)
{
	uint64_t end = begin + bytes;

	for (uint32_t i = first_read(plan, file, begin); i < plan->read_count; i++) {
		const struct plan_read *read = &plan->reads[i];
		if (read->file != file || read->file_offset >= end)
			break;
		uint64_t piece = read->file_offset > begin ? read->file_offset : begin;
		uint64_t read_end = read->file_offset + read->bytes;
		uint64_t piece_end = read_end < end ? read_end : end;
		uint8_t *target = (uint8_t *)segments[read->segment] + read->offset;
		memcpy(target + (piece - read->file_offset), from + (piece - begin), piece_end - piece);
	}
}
