/* Inside builder*.c only: what a builder holds until it is finished. */
#ifndef IPCC_MANIFEST_BUILDER_STATE_H
#define IPCC_MANIFEST_BUILDER_STATE_H

#include "manifest/builder.h"
#include "manifest/format.h"

/* Grows by doubling. Pointers into it die with the next addition, so everything refers to it by offset. */
struct buffer {
	uint8_t *bytes;
	size_t used;
	size_t room;
};

/*
 * Entries are kept as the manifest has them, their strings pointing into `strings`. builder_finish copies them in their
 * final order and their strings with them: equal content gives equal bytes whatever the order of adding.
 */
struct builder {
	struct buffer entries[SECTION_COUNT]; /* SECTION_INDEX is unused; SECTION_STRINGS is the raw pool */
	uint32_t counts[SECTION_COUNT];
	struct manifest_string name;
};

/* How many slots an index over `count` names should have: half of them stay empty. */
uint32_t builder_index_slots(uint32_t count);
/* Fills slots[slot_count] for `count` tensors whose names lie in `strings`. 0: *seed is the index's seed. 1: no seed
 * that was tried gives short enough probes; try more slots. IPCC_INVALID: a name is there twice. */
int builder_index_fill(const struct manifest_tensor *tensors, uint32_t count, const uint8_t *strings, le32 *slots,
		       uint32_t slot_count, uint64_t *seed, struct ipcc_error *err);

#endif
