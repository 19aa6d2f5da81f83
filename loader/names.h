/*
 * A set of names that counts them: each distinct name has a number, in the order of their coming. For an index of 100,000
 * tensors, where one allocation for each name is too many.
 */
#ifndef IPCC_LOADER_NAMES_H
#define IPCC_LOADER_NAMES_H

#include <stddef.h>
#include <stdint.h>

#define NAMES_NONE UINT32_MAX

struct names_slot {
	uint32_t number; /* + 1; 0: empty */
	uint32_t hash;
};

/* Zeroed, it is empty. Belongs to one thread while names are added. */
struct names {
	uint32_t count;
	uint32_t room;
	uint32_t *offsets; /* of each name in `text`, NUL-terminated there */
	char *text;
	size_t text_bytes;
	size_t text_room;
	uint32_t slot_count; /* a power of two, or 0 */
	struct names_slot *slots;
};

/* The number of that name, which is added if it is new: then it is the old count. NAMES_NONE without memory, or beyond 4 GiB
 * of names. */
uint32_t names_add(struct names *names, const char *text, size_t length);
/* Its number, or NAMES_NONE. */
uint32_t names_find(const struct names *names, const char *text, size_t length);
/* Valid until the next names_add. */
const char *names_text(const struct names *names, uint32_t number);
void names_fini(struct names *names);

#endif
