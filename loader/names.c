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

/* The slot of that name, or the empty one where it would be. */
static uint32_t find_slot(const struct names *names, const char *text, size_t length)
{
	uint32_t mask = names->slot_count - 1;
	uint32_t slot = (uint32_t)hash_name(text, length, SEED) & mask;

	while (names->slots[slot] != 0) {
		const char *other = names_text(names, names->slots[slot] - 1);
		if (strncmp(other, text, length) == 0 && other[length] == '\0')
			break;
		slot = (slot + 1) & mask;
	}
	return slot;
}

uint32_t names_find(const struct names *names, const char *text, size_t length)
{
	if (names->slot_count == 0)
		return NAMES_NONE;
	uint32_t found = names->slots[find_slot(names, text, length)];
	return found != 0 ? found - 1 : NAMES_NONE;
}

static bool grow_table(struct names *names)
{
	uint32_t count = names->slot_count != 0 ? 2 * names->slot_count : 256;
	uint32_t *slots = calloc(count, sizeof(*slots));
	uint32_t *offsets = realloc(names->offsets, count / 2 * sizeof(*offsets));

	if (offsets != NULL)
		names->offsets = offsets;
	if (slots == NULL || offsets == NULL) {
		free(slots);
		return false;
	}
	free(names->slots);
	names->slots = slots;
	names->slot_count = count;
	names->room = count / 2;
	for (uint32_t i = 0; i < names->count; i++) {
		const char *text = names_text(names, i);
		names->slots[find_slot(names, text, strlen(text))] = i + 1;
	}
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
	uint32_t found = names_find(names, text, length);

	if (found != NAMES_NONE)
		return found;
	if ((names->count == names->room && !grow_table(names)) || !grow_text(names, length))
		return NAMES_NONE;
	names->slots[find_slot(names, text, length)] = names->count + 1;
	names->offsets[names->count] = (uint32_t)names->text_bytes;
	memcpy(names->text + names->text_bytes, text, length);
	names->text[names->text_bytes + length] = '\0';
	names->text_bytes += length + 1;
	return names->count++;
}
