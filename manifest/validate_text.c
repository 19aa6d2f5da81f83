/* The sections that are mostly text: header and gaps, key fields, sources, attributes. */
#include "manifest/path.h"
#include "manifest/utf8.h"
#include "manifest/validate_state.h"

int validate_text(struct validator *v, struct place place, struct manifest_string s, struct text_rule rule,
		  const char **text, struct ipcc_error *err)
{
	uint32_t bytes = le32_get(s.bytes);
	const char *found = manifest_text(&v->m, s);

	if (found == NULL)
		return manifest_refuse(v->m.bytes, place, err,
				       "%u bytes at %u of the strings section are out of its bounds or not "
				       "followed by a NUL",
				       bytes, le32_get(s.offset));
	if (bytes < rule.min_bytes || bytes > rule.max_bytes)
		return manifest_refuse(v->m.bytes, place, err, "%u bytes; %u to %u are allowed", bytes, rule.min_bytes,
				       rule.max_bytes);
	v->work += bytes;
	if (rule.printable ? !utf8_printable(found, bytes) : !utf8_valid(found, bytes))
		return manifest_refuse(v->m.bytes, place, err, "not UTF-8 without %s",
				       rule.printable ? "control characters" : "NUL");
	*text = found;
	return 0;
}

int validate_order(struct validator *v, enum manifest_section_id section, uint32_t i, struct ipcc_error *err)
{
	const struct manifest_string *name = manifest_entry(&v->m, section, i);
	if (i == 0)
		return 0;
	const char *before =
		manifest_text(&v->m, *(const struct manifest_string *)manifest_entry(&v->m, section, i - 1));
	/* Both were checked: bounded, and without NUL inside. */
	if (strcmp(before, manifest_text(&v->m, *name)) < 0)
		return 0;
	struct place place = {manifest_section_name(section), i, "name", -1, name};
	return manifest_refuse(v->m.bytes, place, err, "names must be unique and sorted, but \"%s\" stands before it",
			       before);
}

/* The sections lie back to back: see format.h. */
static int check_layout(struct validator *v, struct ipcc_error *err)
{
	const struct manifest *m = &v->m;
	const uint8_t *end = m->bytes + le32_get(m->header->header_bytes);

	for (uint32_t i = 0; i < SECTION_COUNT; i++) {
		uint64_t expected = align_up((uint64_t)(end - m->bytes), MANIFEST_ALIGNMENT);
		if (m->sections[i] != m->bytes + expected)
			return manifest_refuse(m->bytes, IN_ARRAY(NULL, 0, m->header, sections, i), err,
					       "%s: offset %td; the section before ends so "
					       "that it must be %llu",
					       manifest_section_name(i), m->sections[i] - m->bytes,
					       (unsigned long long)expected);
		if (!all_zero(end, (size_t)(m->sections[i] - end)))
			return manifest_refuse(m->bytes, (struct place){NULL, 0, "sections", (int)i, end}, err,
					       "%s: the gap before it is not zero", manifest_section_name(i));
		end = m->sections[i] + (uint64_t)m->strides[i] * m->counts[i];
	}
	if (end != m->bytes + m->total_bytes)
		return manifest_refuse(m->bytes, IN_HEADER(m->header, total_bytes), err,
				       "%llu; the last section ends at %td", (unsigned long long)m->total_bytes,
				       end - m->bytes);
	return 0;
}

static int check_limits(struct validator *v, struct ipcc_error *err)
{
	const struct manifest *m = &v->m;
	const struct manifest_header *h = m->header;

	if (m->counts[SECTION_FIELDS] > MANIFEST_MAX_FIELDS)
		return manifest_refuse(m->bytes, IN_ARRAY(NULL, 0, h, sections, SECTION_FIELDS), err,
				       "%u fields; the limit is %d", m->counts[SECTION_FIELDS], MANIFEST_MAX_FIELDS);
	if (m->counts[SECTION_SEGMENTS] > MANIFEST_MAX_SEGMENTS)
		return manifest_refuse(m->bytes, IN_ARRAY(NULL, 0, h, sections, SECTION_SEGMENTS), err,
				       "%u segments; the limit is %d", m->counts[SECTION_SEGMENTS],
				       MANIFEST_MAX_SEGMENTS);
	if (le64_get(h->block_bytes) != HASH_BLOCK_BYTES)
		return manifest_refuse(m->bytes, IN_HEADER(h, block_bytes), err, "%llu; version 1 has %llu",
				       (unsigned long long)le64_get(h->block_bytes),
				       (unsigned long long)HASH_BLOCK_BYTES);
	if (le32_get(h->visibility) > IPCC_VISIBLE_ALL)
		return manifest_refuse(m->bytes, IN_HEADER(h, visibility), err, "%u is no visibility",
				       le32_get(h->visibility));
	return 0;
}

int validate_header(struct validator *v, bool *done, struct ipcc_error *err)
{
	const struct manifest_header *h = v->m.header;
	const char *name;

	*done = true;
	int code = check_limits(v, err);
	if (code == 0)
		code = check_layout(v, err);
	if (code == 0)
		code = validate_text(v, IN_HEADER(h, name), h->name, (struct text_rule){0, MANIFEST_MAX_NAME, true},
				     &name, err);
	return code;
}

int validate_field(struct validator *v, uint32_t i, struct ipcc_error *err)
{
	const struct manifest_field *raw = manifest_entry(&v->m, SECTION_FIELDS, i);
	struct place name_place = IN_ENTRY("fields", i, raw, name), value_place = IN_ENTRY("fields", i, raw, value);
	const char *name, *value, *fault;

	int code = validate_text(v, name_place, raw->name, (struct text_rule){0, MANIFEST_MAX_FIELD_NAME, false}, &name,
				 err);
	if (code == 0)
		code = validate_text(v, value_place, raw->value, (struct text_rule){0, MANIFEST_MAX_FIELD_VALUE, false},
				     &value, err);
	if (code != 0)
		return code;
	if ((fault = key_name_fault(name, le32_get(raw->name.bytes))) != NULL)
		return manifest_refuse(v->m.bytes, name_place, err, "%s", fault);
	if ((fault = key_value_fault(value, le32_get(raw->value.bytes))) != NULL)
		return manifest_refuse(v->m.bytes, value_place, err, "%s", fault);
	v->key_bytes += le32_get(raw->name.bytes) + le32_get(raw->value.bytes);
	if (v->key_bytes > MANIFEST_MAX_KEY_BYTES)
		return manifest_refuse(v->m.bytes, value_place, err,
				       "names and values take more than %d bytes together", MANIFEST_MAX_KEY_BYTES);
	return validate_order(v, SECTION_FIELDS, i, err);
}

int validate_source(struct validator *v, uint32_t i, struct ipcc_error *err)
{
	const struct manifest_source *raw = manifest_entry(&v->m, SECTION_SOURCES, i);
	struct place place = IN_ENTRY("sources", i, raw, name);
	const char *name;

	int code =
		validate_text(v, place, raw->name, (struct text_rule){1, MANIFEST_MAX_SOURCE_NAME, false}, &name, err);
	if (code != 0)
		return code;
	if (!path_stays_inside(name))
		return manifest_refuse(v->m.bytes, place, err,
				       "\"%s\" is not a relative path without empty, \".\" or \"..\" parts", name);
	if (le32_get(raw->hashed) > 1)
		return manifest_refuse(v->m.bytes, IN_ENTRY("sources", i, raw, hashed), err, "%u is neither 0 nor 1",
				       le32_get(raw->hashed));
	if (le32_get(raw->reserved) != 0)
		return manifest_refuse(v->m.bytes, IN_ENTRY("sources", i, raw, reserved), err, "not zero");
	if (le32_get(raw->hashed) == 0 && !all_zero(raw->hash, sizeof(raw->hash)))
		return manifest_refuse(v->m.bytes, IN_ENTRY("sources", i, raw, hash), err, "not zero, but hashed is 0");
	return validate_order(v, SECTION_SOURCES, i, err);
}

int validate_attribute(struct validator *v, uint32_t i, struct ipcc_error *err)
{
	const struct manifest_attribute *raw = manifest_entry(&v->m, SECTION_ATTRIBUTES, i);
	struct ipcc_attribute a;

	int code = validate_text(v, IN_ENTRY("attributes", i, raw, name), raw->name,
				 (struct text_rule){1, MANIFEST_MAX_ATTRIBUTE_NAME, true}, &a.name, err);
	if (code == 0)
		code = validate_text(v, IN_ENTRY("attributes", i, raw, type), raw->type,
				     (struct text_rule){0, MANIFEST_MAX_ATTRIBUTE_TYPE, true}, &a.type, err);
	if (code == 0)
		code = manifest_attribute(&v->m, i, &a, err);
	return code != 0 ? code : validate_order(v, SECTION_ATTRIBUTES, i, err);
}
