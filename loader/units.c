/* See units.h. The array of units grows by doubling; the reads of a plan are walked once. */
#include "loader/units.h"

#include "manifest/bytes.h"
#include "manifest/hash.h"

#include <errno.h>
#include <stdlib.h>

struct builder {
	struct units *units;
	uint64_t unit_room;
	uint32_t extent_room;
	const struct plan *plan;
	const struct extent_sizes *sizes;
	uint64_t extent_bytes; /* that the last extent gets, ... */
	uint64_t extent_used;  /* ... and has */
	uint64_t segment_used; /* by extents of its segment */
};

void units_fini(struct units *units)
{
	free(units->units);
	free(units->extents);
	free(units->file_units);
	free(units->file_whole);
	*units = (struct units){0};
}

static int make_room(struct builder *b)
{
	struct units *u = b->units;

	if (u->unit_count == b->unit_room) {
		uint64_t room = b->unit_room != 0 ? 2 * b->unit_room : 256;
		struct unit *larger = realloc(u->units, room * sizeof(*larger));
		if (larger == NULL)
			return -ENOMEM;
		u->units = larger;
		b->unit_room = room;
	}
	if (u->extent_count == b->extent_room) {
		uint32_t room = b->extent_room != 0 ? 2 * b->extent_room : 64;
		struct extent *larger = realloc(u->extents, room * sizeof(*larger));
		if (larger == NULL)
			return -ENOMEM;
		u->extents = larger;
		b->extent_room = room;
	}
	return 0;
}

/* Half of what each worker of the segment has left to do, within the limits. */
static uint64_t next_size(const struct builder *b, uint32_t segment)
{
	const struct extent_sizes *sizes = b->sizes;
	uint64_t bytes = b->plan->segment_count > 0 ? b->plan->segment_bytes[segment] : 0;
	uint64_t left = bytes > b->segment_used ? bytes - b->segment_used : 0;

	if (sizes->workers == 0 || left / 2 / sizes->workers > sizes->most_bytes)
		return sizes->most_bytes;
	left /= 2 * sizes->workers;
	return left > sizes->least_bytes ? left : sizes->least_bytes;
}

static int add_unit(struct builder *b, uint32_t file, uint64_t begin, uint64_t end, uint32_t segment)
{
	struct units *u = b->units;

	int r = make_room(b);
	if (r < 0)
		return r;
	struct extent *last = u->extent_count > 0 ? &u->extents[u->extent_count - 1] : NULL;
	if (last == NULL || last->segment != segment || b->extent_used >= b->extent_bytes) {
		b->segment_used = last != NULL && last->segment == segment ? b->segment_used + b->extent_used : 0;
		b->extent_bytes = next_size(b, segment);
		last = &u->extents[u->extent_count++];
		*last = (struct extent){.segment = segment, .first_unit = u->unit_count};
		b->extent_used = 0;
	}
	u->units[u->unit_count++] = (struct unit){.file = file, .bytes = (uint32_t)(end - begin), .begin = begin};
	last->unit_count++;
	b->extent_used += end - begin;
	u->file_units[file]++;
	u->bytes += end - begin;
	return 0;
}

/* All blocks of a file; reads[0 .. count) are its reads. */
static int add_whole_file(struct builder *b, uint32_t file, uint64_t bytes, const struct plan_read *reads,
			  uint32_t count)
{
	uint32_t i = 0;

	b->units->file_whole[file] = true;
	for (uint64_t begin = 0; begin < bytes; begin += HASH_BLOCK_BYTES) {
		uint64_t end = bytes - begin < HASH_BLOCK_BYTES ? bytes : begin + HASH_BLOCK_BYTES;
		while (i + 1 < count && plan_read_end(&reads[i]) <= begin)
			i++;
		int r = add_unit(b, file, begin, end, reads[i].segment);
		if (r < 0)
			return r;
	}
	return 0;
}

/* A unit in the making: [begin, end), empty while begin == end. */
struct open_unit {
	uint64_t begin;
	uint64_t end;
	uint32_t segment;
};

/* Adds [begin, end) of the file, cut at its blocks, to the unit in the making or to the next one. */
static int add_piece(struct builder *b, uint32_t file, struct open_unit *open, uint64_t begin, uint64_t end,
		     uint32_t segment)
{
	while (begin < end) {
		uint64_t block_end = align_up(begin + 1, HASH_BLOCK_BYTES);
		uint64_t stop = end < block_end ? end : block_end;
		bool joins = open->begin != open->end && begin - open->end < UNIT_GAP_BYTES &&
			     open->begin / HASH_BLOCK_BYTES == begin / HASH_BLOCK_BYTES;
		if (!joins) {
			int r = open->begin != open->end ? add_unit(b, file, open->begin, open->end, open->segment) : 0;
			if (r < 0)
				return r;
			*open = (struct open_unit){begin, begin, segment};
		}
		open->end = stop;
		begin = stop;
	}
	return 0;
}

static int add_parts(struct builder *b, uint32_t file, const struct plan_read *reads, uint32_t count)
{
	struct open_unit open = {0};

	for (uint32_t i = 0; i < count; i++) {
		for (uint64_t row = 0; row < reads[i].rows; row++) {
			uint64_t begin = reads[i].file_offset + row * reads[i].stride;
			int r = add_piece(b, file, &open, begin, begin + reads[i].bytes, reads[i].segment);
			if (r < 0)
				return r;
		}
	}
	return add_unit(b, file, open.begin, open.end, open.segment);
}

static int cut(struct builder *b, const struct checkpoint *cp, const struct plan *plan)
{
	uint32_t i = 0;

	while (i < plan->read_count) {
		uint32_t first = i, file = plan->reads[i].file;
		const struct safetensors *header = &cp->files[file].header;
		uint64_t planned = 0;
		while (i < plan->read_count && plan->reads[i].file == file) {
			planned += plan->reads[i].rows * plan->reads[i].bytes;
			i++;
		}
		/* The tensors cover a file's data exactly. */
		int r = planned == header->source.bytes - header->data_begin
				? add_whole_file(b, file, header->source.bytes, &plan->reads[first], i - first)
				: add_parts(b, file, &plan->reads[first], i - first);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Files that have no data are read for their hash, if all is. They go into the last extent. */
static int add_empty_files(struct builder *b, const struct checkpoint *cp, const struct plan *plan)
{
	uint32_t segment = plan->read_count > 0 ? plan->reads[plan->read_count - 1].segment : 0;

	for (uint32_t f = 0; f < cp->file_count; f++) {
		const struct safetensors *header = &cp->files[f].header;
		if (header->source.bytes != header->data_begin)
			continue;
		const struct plan_read none = {.segment = segment, .file_offset = header->source.bytes, .rows = 1};
		int r = add_whole_file(b, f, header->source.bytes, &none, 1);
		if (r < 0)
			return r;
	}
	return 0;
}

int units_init(struct units *units, const struct checkpoint *cp, const struct plan *plan,
	       const struct extent_sizes *sizes)
{
	struct units made = {0};
	struct builder b = {.units = &made, .plan = plan, .sizes = sizes};

	made.file_units = calloc((size_t)cp->file_count + 1, sizeof(*made.file_units));
	made.file_whole = calloc((size_t)cp->file_count + 1, sizeof(*made.file_whole));
	int r = made.file_units == NULL || made.file_whole == NULL ? -ENOMEM : cut(&b, cp, plan);
	if (r == 0)
		r = add_empty_files(&b, cp, plan);
	if (r < 0) {
		units_fini(&made);
		return r;
	}
	*units = made;
	return 0;
}
