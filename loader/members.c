/* See members.h. Linear: every byte is looked at once. */
#include "loader/members.h"

#include "manifest/utf8.h"

#include <jansson.h>
#include <string.h>

static void skip_space(struct members *m)
{
	while (m->at < m->end && (*m->at == ' ' || *m->at == '\t' || *m->at == '\n' || *m->at == '\r'))
		m->at++;
}

/* Passes `c`, after white space; false when something else is there. */
static bool pass(struct members *m, char c)
{
	skip_space(m);
	if (m->at >= m->end || *m->at != c)
		return false;
	m->at++;
	return true;
}

/* From an opening quote to behind the closing one, or to the end. */
static void skip_string(struct members *m)
{
	m->at++;
	while (m->at < m->end && *m->at != '"')
		m->at += *m->at == '\\' && m->end - m->at > 1 ? 2 : 1;
	m->at += m->at < m->end;
}

/* A value, up to what follows it on its own level. */
static void skip_value(struct members *m)
{
	size_t depth = 0;

	while (m->at < m->end) {
		char c = *m->at;
		if (c == '"') {
			skip_string(m);
			if (depth == 0)
				return;
			continue;
		}
		if (depth == 0 && (c == ',' || c == '}' || c == ']'))
			return;
		m->at++;
		if (c == '{' || c == '[')
			depth++;
		else if ((c == '}' || c == ']') && --depth == 0)
			return;
	}
}

int members_next(struct members *m, struct piece *name, struct piece *value)
{
	if (!m->begun && !pass(m, '{'))
		return -1;
	if (pass(m, '}'))
		return 0;
	if (m->begun && !pass(m, ','))
		return -1;
	m->begun = true;
	skip_space(m);
	if (m->at >= m->end || *m->at != '"')
		return -1;
	name->at = m->at;
	skip_string(m);
	name->length = (size_t)(m->at - name->at);
	if (!pass(m, ':'))
		return -1;
	skip_space(m);
	value->at = m->at;
	skip_value(m);
	value->length = (size_t)(m->at - value->at);
	return value->length > 0 ? 1 : -1;
}

bool piece_is_plain_string(struct piece value)
{
	unsigned odd = 0, foreign = 0;

	if (value.length < 2 || value.at[0] != '"' || value.at[value.length - 1] != '"')
		return false;
	for (size_t i = 1; i < value.length - 1; i++) {
		unsigned char c = (unsigned char)value.at[i];
		odd |= c < 0x20 || c == '"' || c == '\\' || c == 0x7f;
		foreign |= c;
	}
	return odd == 0 && (foreign < 0x80 || utf8_printable(value.at + 1, value.length - 2));
}

/* A number of up to 18 digits, after white space; false when there is something else. */
static bool plain_number(struct members *m, uint64_t *number)
{
	const char *first;

	skip_space(m);
	first = m->at;
	*number = 0;
	while (m->at < m->end && *m->at >= '0' && *m->at <= '9' && m->at - first < 18)
		*number = *number * 10 + (uint64_t)(*m->at++ - '0');
	return m->at > first && (*first != '0' || m->at - first == 1);
}

int piece_plain_numbers(struct piece value, uint64_t *numbers, unsigned room)
{
	struct members m = {.at = value.at, .end = value.at + value.length};
	unsigned count = 0;

	if (!pass(&m, '['))
		return -1;
	if (!pass(&m, ']')) {
		do {
			if (count == room || !plain_number(&m, &numbers[count]))
				return -1;
			count++;
		} while (pass(&m, ','));
		if (!pass(&m, ']'))
			return -1;
	}
	skip_space(&m);
	return m.at == m.end ? (int)count : -1;
}

bool piece_is(struct piece string, const char *text)
{
	size_t length = strlen(text);

	if (memchr(string.at, '\\', string.length) == NULL)
		return string.length == length + 2 && memcmp(string.at + 1, text, length) == 0;
	json_t *decoded = json_loadb(string.at, string.length, JSON_DECODE_ANY, NULL);
	bool equal = decoded != NULL && strcmp(json_string_value(decoded), text) == 0;
	json_decref(decoded);
	return equal;
}

bool piece_has_negative_number(struct piece value)
{
	struct members m = {.at = value.at, .end = value.at + value.length};

	while (m.at < m.end) {
		if (*m.at == '"') {
			skip_string(&m);
			continue;
		}
		if (*m.at == '-' && (m.at == value.at || (m.at[-1] != 'e' && m.at[-1] != 'E')))
			return true;
		m.at++;
	}
	return false;
}
