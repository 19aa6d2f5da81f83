/* Messages that name a place in the manifest, and lookup by name. */
#include "manifest/locate.h"

#include <stdarg.h>
#include <stdio.h>

const char *manifest_section_name(enum manifest_section_id section)
{
	static const char *const names[SECTION_COUNT] = {
		[SECTION_FIELDS] = "fields",	     [SECTION_SEGMENTS] = "segments", [SECTION_TENSORS] = "tensors",
		[SECTION_INDEX] = "index",	     [SECTION_SOURCES] = "sources",   [SECTION_BLOCKS] = "blocks",
		[SECTION_ATTRIBUTES] = "attributes", [SECTION_STRINGS] = "strings",   [SECTION_DATA] = "data",
	};
	return names[section];
}

static void describe(struct place place, char *text, size_t bytes)
{
	char entry[48] = "header", element[16] = "";

	if (place.section != NULL)
		snprintf(entry, sizeof(entry), "%s[%u]", place.section, place.entry);
	if (place.element >= 0)
		snprintf(element, sizeof(element), "[%d]", place.element);
	snprintf(text, bytes, "%s%s%s%s", entry, place.field != NULL ? "." : "", place.field != NULL ? place.field : "",
		 element);
}

int manifest_refuse(const void *base, struct place place, struct ipcc_error *err, const char *format, ...)
{
	char where[128], reason[512];
	va_list args;

	if (err == NULL)
		return IPCC_INVALID;
	va_start(args, format);
	vsnprintf(reason, sizeof(reason), format, args);
	va_end(args);
	describe(place, where, sizeof(where));
	return fail(err, IPCC_INVALID, "manifest: %s at offset %td: %s", where,
		    (const uint8_t *)place.at - (const uint8_t *)base, reason);
}

static bool has_name(const struct manifest *m, uint32_t tensor, const char *name, size_t bytes, uint64_t *compared)
{
	const struct manifest_tensor *raw = manifest_entry(m, SECTION_TENSORS, tensor);
	if (raw == NULL || le32_get(raw->name.bytes) != bytes)
		return false;
	const char *text = manifest_text(m, raw->name);
	*compared += bytes;
	return text != NULL && memcmp(text, name, bytes) == 0;
}

int64_t manifest_probe(const struct manifest *m, const char *name, size_t bytes, uint64_t *compared)
{
	const le32 *slots = (const le32 *)m->sections[SECTION_INDEX];
	uint32_t count = m->counts[SECTION_INDEX];
	uint64_t at = hash_name(name, bytes, le64_get(m->header->index_seed));

	for (uint32_t step = 0; step < MANIFEST_MAX_PROBE && step < count; step++, at++) {
		uint32_t slot = le32_get(slots[at & (count - 1)]);
		if (slot == 0)
			break;
		if (has_name(m, slot - 1, name, bytes, compared))
			return slot - 1;
	}
	return -1;
}

int64_t manifest_find(const struct manifest *m, const char *name)
{
	uint64_t compared = 0;
	return manifest_probe(m, name, strlen(name), &compared);
}
