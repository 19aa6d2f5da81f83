/*
 * The hash index over tensor names: open addressing with linear probing, at most half full, and no name more than
 * MANIFEST_MAX_PROBE steps from its place, so that a lookup in hostile or damaged bytes is bounded too.
 */
#include "manifest/builder_state.h"
#include "manifest/fail.h"

#define INDEX_SEEDS 8

enum place_result {
	PLACED,
	TOO_FAR,
	TWICE,
};

static bool same_name(struct manifest_string a, struct manifest_string b, const uint8_t *strings)
{
	uint32_t bytes = le32_get(a.bytes);
	return bytes == le32_get(b.bytes) &&
	       memcmp(strings + le32_get(a.offset), strings + le32_get(b.offset), bytes) == 0;
}

uint32_t builder_index_slots(uint32_t count)
{
	uint32_t slots = count == 0 ? 0 : 2;
	while (slots < 2 * (uint64_t)count)
		slots *= 2;
	return slots;
}

static enum place_result place_tensor(const struct manifest_tensor *tensors, uint32_t number, const uint8_t *strings,
				      le32 *slots, uint32_t slot_count, uint64_t seed)
{
	struct manifest_string name = tensors[number].name;
	uint64_t at = hash_name(strings + le32_get(name.offset), le32_get(name.bytes), seed);

	for (uint32_t step = 0; step < MANIFEST_MAX_PROBE && step < slot_count; step++, at++) {
		le32 *slot = &slots[at & (slot_count - 1)];
		uint32_t holder = le32_get(*slot);
		if (holder == 0) {
			*slot = le32_make(number + 1);
			return PLACED;
		}
		if (same_name(tensors[holder - 1].name, name, strings))
			return TWICE;
	}
	return TOO_FAR;
}

int builder_index_fill(const struct manifest_tensor *tensors, uint32_t count, const uint8_t *strings, le32 *slots,
		       uint32_t slot_count, uint64_t *seed, struct ipcc_error *err)
{
	for (uint64_t s = 0; s < INDEX_SEEDS; s++) {
		enum place_result result = PLACED;

		memset(slots, 0, slot_count * sizeof(*slots));
		for (uint32_t i = 0; i < count && result == PLACED; i++) {
			result = place_tensor(tensors, i, strings, slots, slot_count, s);
			if (result == TWICE)
				return fail(err, IPCC_INVALID, "builder: there are two tensors of the name \"%.*s\"",
					    (int)le32_get(tensors[i].name.bytes),
					    strings + le32_get(tensors[i].name.offset));
		}
		if (result == PLACED) {
			*seed = s;
			return 0;
		}
	}
	return 1;
}
