/* See names.h. An open-addressing table, at most half full. */
#include "loader/names.h"

#include "manifest/hash.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Of no secrecy: a set of names that collide on purpose makes its own loading slow. */
#define SEED 0

void names_fini(struct names *names)
{
	free(names->offsets);
	free(names->text);
	free(names->slots);
	*names = (struct names){0};
}

const char *names_text(const struct names *names, uint32_t number)
{
	return names->text + names->offsets[number];
}

static uint32_t hash_of(const char *text, size_t length)
{
	return (uint32_t)hash_name(text, length, SEED);
}

/* The slot of that name, or the empty one where it would be. Texts are looked at where the hashes agree. */
static struct names_slot *find_slot(const struct names *names, const char *text, size_t length, uint32_t hash)
{
	uint32_t mask = names->slot_count - 1;

	for (uint32_t i = hash & mask;; i = (i + 1) & mask) {
		struct names_slot *slot = &names->slots[i];
		if (slot->number == 0)
			return slot;
		const char *other = names_text(names, slot->number - 1);
		if (slot->hash == hash && strncmp(other, text, length) == 0 && other[length] == '\0')
			return slot;
	}
}

uint32_t names_find(const struct names *names, const char *text, size_t length)
{
	if (names->slot_count == 0)
		return NAMES_NONE;
	uint32_t found = find_slot(names, text, length, hash_of(text, length))->number;
	return found != 0 ? found - 1 : NAMES_NONE;
}

static bool grow_table(struct names *names)
{
	uint32_t count = names->slot_count != 0 ? 2 * names->slot_count : 256, mask = count - 1;
	struct names_slot *slots = calloc(count, sizeof(*slots));
	uint32_t *offsets = realloc(names->offsets, count / 2 * sizeof(*offsets));

	if (offsets != NULL)
		names->offsets = offsets;
	if (slots == NULL || offsets == NULL) {
		free(slots);
		return false;
	}
	for (uint32_t i = 0; i < names->slot_count; i++) {
		uint32_t to = names->slots[i].hash & mask;
		if (names->slots[i].number == 0)
			continue;
		while (slots[to].number != 0)
			to = (to + 1) & mask;
		slots[to] = names->slots[i];
	}
	free(names->slots);
	names->slots = slots;
	names->slot_count = count;
	names->room = count / 2;
	return true;
}

static bool grow_text(struct names *names, size_t length)
{
	size_t room = names->text_room != 0 ? names->text_room : 4096;

	while (room - names->text_bytes < length + 1)
		room *= 2;
	if (room > UINT32_MAX)
		return false;
	char *text = room == names->text_room ? names->text : realloc(names->text, room);
	if (text == NULL)
		return false;
	names->text = text;
	names->text_room = room;
	return true;
}

uint32_t names_add(struct names *names, const char *text, size_t length)
{
	uint32_t hash = hash_of(text, length);

	if (names->count == names->room && !grow_table(names))
		return NAMES_NONE;
	struct names_slot *slot = find_slot(names, text, length, hash);
	if (slot->number != 0)
		return slot->number - 1;
	if (!grow_text(names, length))
		return NAMES_NONE;
	*slot = (struct names_slot){names->count + 1, hash};
	names->offsets[names->count] = (uint32_t)names->text_bytes;
	memcpy(names->text + names->text_bytes, text, length);
	names->text[names->text_bytes + length] = '\0';
	names->text_bytes += length + 1;
	return names->count++;
}
