/*
 * A plan: which file ranges go to which segment and offset, as plain data, made without any I/O.
 *
 *   - places[i] says where tensor i of the request lies; tensors keep the order of the request, which is that of the
 *     disk, and start at multiples of MANIFEST_TENSOR_ALIGNMENT, so that along the reads (segment, offset) only grows;
 *   - no tensor straddles segments; a tensor larger than the limit has a segment to itself;
 *   - every byte of a segment belongs to one tensor at most; the gaps between them belong to none and stay zero;
 *   - reads are sorted by (file, file_offset) and do not overlap; neighbours contiguous in file and segment are one read;
 *   - segment sizes are multiples of MANIFEST_TENSOR_ALIGNMENT and never zero.
 */
#ifndef IPCC_LOADER_PLAN_H
#define IPCC_LOADER_PLAN_H

#include "loader/checkpoint.h"
#include "loader/selection.h"
#include "manifest/error.h"

#include <stdint.h>

/* The default limit is a quarter of the whole, between these two: two threads fill two memfds nearly twice as fast as one
 * (each write holds its memfd's lock), while every segment costs each attach a tenth of a millisecond. */
#define PLAN_SEGMENT_LEAST_BYTES ((uint64_t)64 << 20)
#define PLAN_SEGMENT_LIMIT_BYTES ((uint64_t)4 << 30)

/* What is asked for: `rows` pieces of `bytes` bytes, `stride` apart, the first at `begin` of file `file`. */
struct plan_tensor {
	uint32_t file;
	uint64_t begin;
	uint64_t bytes; /* may be 0 */
	uint64_t rows;	/* 0 is the same as 1 */
	uint64_t stride;
};

struct plan_place {
	uint32_t segment;
	uint32_t tensor; /* its number in the request, or in the checkpoint */
	uint64_t offset;
	uint64_t bytes;
};

/* `rows` pieces of the file, `stride` apart, that lie side by side in the segment. */
struct plan_read {
	uint32_t file;
	uint32_t segment;
	uint64_t file_offset;
	uint64_t offset; /* in the segment */
	uint64_t bytes;	 /* of one piece; never 0 */
	uint64_t rows;	 /* never 0 */
	uint64_t stride; /* at least `bytes` where there are several rows */
};

/* Where the last piece of a read ends in its file. */
static inline uint64_t plan_read_end(const struct plan_read *read)
{
	return read->file_offset + (read->rows - 1) * read->stride + read->bytes;
}

/* Immutable once made; may be shared between threads. */
struct plan {
	uint32_t segment_count;
	uint32_t tensor_count;
	uint32_t read_count;
	uint64_t *segment_bytes;
	struct plan_place *places;
	struct plan_read *reads;
	uint64_t tensor_bytes; /* of all tensors */
	uint64_t total_bytes;  /* of all segments */
};

/*
 * Plans `count` tensors, which must be sorted by (file, begin) and not overlap (else IPCC_USAGE).
 * `segment_limit_bytes`: the size a segment should not exceed; 0 for the default (see above). It is raised
 * until MANIFEST_MAX_SEGMENTS suffice. Release with plan_fini; *plan is untouched on failure. IPCC_INVALID: sizes
 * overflow; IPCC_NO_MEMORY.
 */
int plan_init(struct plan *plan, const struct plan_tensor *tensors, uint32_t count, uint64_t segment_limit_bytes,
	      struct ipcc_error *err);

/*
 * Plans the tensors of a checkpoint that `selection` takes (NULL: all of them, whole): places[i].tensor is the number of
 * checkpoint_tensor(). Refuses in addition a checkpoint without tensors (IPCC_INVALID), a selection that takes none
 * (IPCC_NOT_FOUND), a tensor whose rank a manifest cannot express (IPCC_REFUSED), and what selection_take refuses.
 */
int plan_init_checkpoint(struct plan *plan, const struct checkpoint *cp, const struct selection *selection,
			 uint64_t segment_limit_bytes, struct ipcc_error *err);

/* Makes all segments multiples of `granularity`, a power of two, longer: what the device that takes them asks for.
 * IPCC_INVALID: the sizes overflow. */
int plan_round(struct plan *plan, uint64_t granularity, struct ipcc_error *err);

/* Harmless on a zeroed struct. */
void plan_fini(struct plan *plan);

#endif
