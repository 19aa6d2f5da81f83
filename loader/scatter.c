/* See scatter.h. */
#include "loader/scatter.h"

/* The number of the first read that ends behind `offset` of file `file`, or of a later file. */
static uint32_t first_read(const struct plan *plan, uint32_t file, uint64_t offset)
{
	uint32_t low = 0, high = plan->read_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		const struct plan_read *read = &plan->reads[middle];
		if (read->file < file || (read->file == file && plan_read_end(read) <= offset))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int scatter(const struct plan *plan, uint32_t file, uint64_t begin, uint64_t bytes, const uint8_t *from,
	    scatter_fn *take, void *context)
{
	uint64_t end = begin + bytes;

	for (uint32_t i = first_read(plan, file, begin); i < plan->read_count; i++) {
		const struct plan_read *read = &plan->reads[i];
		if (read->file != file || read->file_offset >= end)
			break;
		uint64_t row =
			read->rows > 1 && begin > read->file_offset ? (begin - read->file_offset) / read->stride : 0;
		for (; row < read->rows; row++) {
			uint64_t row_begin = read->file_offset + row * read->stride;
			uint64_t row_end = row_begin + read->bytes;
			uint64_t piece = row_begin > begin ? row_begin : begin;
			uint64_t piece_end = row_end < end ? row_end : end;
			if (row_begin >= end)
				break;
			if (piece >= piece_end)
				continue;
			int r = take(context, read->segment, read->offset + row * read->bytes + (piece - row_begin),
				     from + (piece - begin), piece_end - piece);
			if (r != 0)
				return r;
		}
	}
	return 0;
}
