/* Inside validate*.c only. */
#ifndef IPCC_MANIFEST_VALIDATE_STATE_H
#define IPCC_MANIFEST_VALIDATE_STATE_H

#include "manifest/locate.h"
#include "manifest/validate.h"

struct validator {
	const void *bytes;
	uint64_t length;
	struct manifest m;
	struct checksum *sum;
	bool refused;
	uint32_t phase;
	uint64_t at;   /* progress within the phase */
	uint64_t work; /* done in this step, in bytes touched */

	uint32_t next_block; /* how many blocks the segments so far have */
	uint32_t block;	     /* validate_blocks: the next one to hash, within segment `at` */
	uint64_t key_bytes;  /* of all fields so far */
	uint32_t slots_used;
	uint64_t owned_end; /* in the tensor's segment: up to here bytes belong to tensors seen already */
};

/* A phase: looks at one more thing; *done when nothing is left. 0, or IPCC_INVALID in err. */
int validate_header(struct validator *v, bool *done, struct ipcc_error *err);
int validate_blocks(struct validator *v, bool *done, struct ipcc_error *err);
int validate_counts(struct validator *v, bool *done, struct ipcc_error *err);

/* One entry of a section. */
int validate_field(struct validator *v, uint32_t i, struct ipcc_error *err);
int validate_segment(struct validator *v, uint32_t i, struct ipcc_error *err);
int validate_tensor(struct validator *v, uint32_t i, struct ipcc_error *err);
int validate_slot(struct validator *v, uint32_t i, struct ipcc_error *err);
int validate_source(struct validator *v, uint32_t i, struct ipcc_error *err);
int validate_attribute(struct validator *v, uint32_t i, struct ipcc_error *err);

/* How a string must look. */
struct text_rule {
	uint32_t min_bytes;
	uint32_t max_bytes;
	bool printable; /* no control characters */
};
/* Checks a string in full, charges its bytes and stores where it is. */
int validate_text(struct validator *v, struct place place, struct manifest_string s, struct text_rule rule,
		  const char **text, struct ipcc_error *err);
/* Entry i begins with its name: is it greater than the name before? */
int validate_order(struct validator *v, enum manifest_section_id section, uint32_t i, struct ipcc_error *err);

static inline bool all_zero(const void *bytes, size_t length)
{
	const uint8_t *p = bytes;
	for (size_t i = 0; i < length; i++)
		if (p[i] != 0)
			return false;
	return true;
}

#endif
