/*
 * Which tensors of a checkpoint are loaded, and which part of them: patterns over names, and the share of one rank of N.
 *
 * A tensor is taken if it matches an include pattern (or there is none) and no exclude pattern. One that matches a `rows`
 * pattern is cut along its first dimension, one that matches a `columns` pattern along its last, into `ranks` equal parts,
 * of which part `rank` is taken; all others are taken whole. Patterns are those of fnmatch(3), over the whole name, where
 * '*' matches any text, dots included.
 */
#ifndef IPCC_LOADER_SELECTION_H
#define IPCC_LOADER_SELECTION_H

#include "loader/safetensors.h"
#include "manifest/error.h"

#include <stdbool.h>
#include <stdint.h>

#define SELECTION_MAX_PATTERNS 64
#define SELECTION_MAX_RANKS    65536

struct patterns {
	uint32_t count;
	const char *texts[SELECTION_MAX_PATTERNS]; /* not owned */
};

/* Zeroed, it takes everything whole. */
struct selection {
	struct patterns include;
	struct patterns exclude;
	struct patterns rows;
	struct patterns columns;
	uint32_t rank;
	uint32_t ranks; /* 0 is the same as 1 */
};

/* The part of a tensor: `rows` pieces of `bytes` bytes, `stride` apart, the first one `skip` bytes behind its beginning. */
struct selected {
	uint64_t skip;
	uint64_t bytes;
	uint64_t rows;
	uint64_t stride;
};

/*
 * Is that tensor wanted, and which part of it? *part is stored only where *wanted becomes true. IPCC_REFUSED: it cannot be
 * cut so (not divisible, no such dimension, a cut inside a byte, both patterns match). Thread-safe.
 */
int selection_take(const struct selection *selection, const struct safetensors_tensor *tensor, bool *wanted,
		   struct selected *part, struct ipcc_error *err);

/* The shape of that part, into shape[tensor->rank]; for tensors that selection_take has accepted. */
void selection_shape(const struct selection *selection, const struct safetensors_tensor *tensor, uint64_t *shape);

/* Does it take all of every tensor? */
bool selection_is_all(const struct selection *selection);

/*
 * What the selection is, as one text that is equal for equal selections ("exclude=lm_head* rank=0/2 rows=*.q_proj.weight"):
 * a field of the model's key. malloc'ed; NULL without memory. Pattern order and repetition count.
 */
char *selection_text(const struct selection *selection);

#endif
