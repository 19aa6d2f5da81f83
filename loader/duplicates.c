/*
 * See duplicates.h. One walk over the text that knows three levels: the header's members, a tensor's members, values.
 * Everything relies on the text being valid JSON, which the caller has from jansson; the end is checked all the same.
 *
 * Names are compared as they are written, and decoded (by jansson) only where they contain an escape.
 */
#include "loader/duplicates.h"

#include "loader/shown.h"
#include "manifest/bytes.h"
#include "manifest/fail.h"

#include <stdbool.h>
#include <string.h>

/* The rest of the text. */
struct scan {
	const char *at;
	const char *end;
};

/* A piece of the text; of a string, with its quotes. */
struct piece {
	const char *at;
	size_t length;
};

static void skip_space(struct scan *s)
{
	while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r'))
		s->at++;
}

static struct piece take_string(struct scan *s)
{
	const char *begin = s->at++;

	while (s->at < s->end && *s->at != '"')
		s->at += *s->at == '\\' ? 2 : 1;
	if (s->at < s->end)
		s->at++;
	else
		s->at = s->end;
	return (struct piece){begin, (size_t)(s->at - begin)};
}

/* Any value, however deep. */
static struct piece take_value(struct scan *s)
{
	const char *begin = s->at;
	size_t depth = 0;

	while (s->at < s->end) {
		char c = *s->at;
		if (c == '"') {
			take_string(s);
			if (depth == 0)
				break;
			continue;
		}
		if (c == '{' || c == '[') {
			depth++;
		} else if (c == '}' || c == ']') {
			if (depth == 0)
				break; /* of what contains this value */
			if (--depth == 0) {
				s->at++;
				break;
			}
		} else if (c == ',' && depth == 0) {
			break;
		}
		s->at++;
	}
	return (struct piece){begin, (size_t)(s->at - begin)};
}

/* The next `"name": value` of an object whose brace was passed. False at its end, which is passed too. */
static bool take_member(struct scan *s, struct piece *name, struct piece *value)
{
	skip_space(s);
	if (s->at < s->end && *s->at == ',') {
		s->at++;
		skip_space(s);
	}
	if (s->at >= s->end || *s->at != '"') {
		s->at += s->at < s->end;
		return false;
	}
	*name = take_string(s);
	skip_space(s);
	s->at += s->at < s->end; /* the colon */
	skip_space(s);
	*value = take_value(s);
	return true;
}

/* A jansson string, or NULL: no memory. */
static json_t *decode(struct piece string)
{
	return json_loadb(string.at, string.length, JSON_DECODE_ANY, NULL);
}

static bool piece_is(struct piece string, const char *text)
{
	if (memchr(string.at, '\\', string.length) == NULL) {
		size_t length = strlen(text);
		return string.length == length + 2 && memcmp(string.at + 1, text, length) == 0;
	}
	json_t *decoded = decode(string);
	bool equal = decoded != NULL && strcmp(json_string_value(decoded), text) == 0;
	json_decref(decoded);
	return equal;
}

/* A minus that is not an exponent's, outside strings. */
static bool has_negative_number(struct piece value)
{
	struct scan s = {value.at, value.at + value.length};

	while (s.at < s.end) {
		if (*s.at == '"') {
			take_string(&s);
			continue;
		}
		if (*s.at == '-' && (s.at == value.at || (s.at[-1] != 'e' && s.at[-1] != 'E')))
			return true;
		s.at++;
	}
	return false;
}

static int fail_in_tensor(struct piece tensor, const char *path, const char *what, const char *member,
			  struct ipcc_error *err)
{
	json_t *name = decode(tensor);
	int r = fail(err, IPCC_INVALID, "%s: tensor '%s': %s '%s'", shown(path),
		     shown(name != NULL ? json_string_value(name) : "?"), what, member);
	json_decref(name);
	return r;
}

static int check_tensor(struct piece tensor, struct piece members, const char *path, struct ipcc_error *err)
{
	static const char *const known[] = {"dtype", "shape", "data_offsets"};
	struct scan s = {members.at + 1, members.at + members.length};
	struct piece name, value;
	unsigned seen = 0;

	while (take_member(&s, &name, &value)) {
		for (size_t i = 0; i < array_length(known); i++) {
			if (!piece_is(name, known[i]))
				continue;
			if (seen & (1u << i))
				return fail_in_tensor(tensor, path, "duplicate", known[i], err);
			if (i > 0 && has_negative_number(value))
				return fail_in_tensor(tensor, path, "negative number in", known[i], err);
			seen |= 1u << i;
			break;
		}
	}
	return 0;
}

/* There is a duplicate: find its name. */
static int fail_duplicate(const char *text, size_t length, const char *path, struct ipcc_error *err)
{
	struct scan s = {text + 1, text + length};
	struct piece name, value;
	json_t *seen = json_object();
	int r = 0;

	while (r == 0 && take_member(&s, &name, &value)) {
		json_t *decoded = decode(name);
		const char *plain = decoded != NULL ? json_string_value(decoded) : NULL;
		if (plain == NULL)
			r = fail(err, IPCC_NO_MEMORY, "%s: no memory to parse the header", shown(path));
		else if (json_object_get(seen, plain) != NULL)
			r = fail(err, IPCC_INVALID, "%s: '%s' is defined twice in the header", shown(path),
				 shown(plain));
		else if (json_object_set_new(seen, plain, json_null()) < 0)
			r = fail(err, IPCC_NO_MEMORY, "%s: no memory to parse the header", shown(path));
		json_decref(decoded);
	}
	json_decref(seen);
	return r != 0 ? r : fail(err, IPCC_INVALID, "%s: duplicate names in the header", shown(path));
}

int duplicates_check(const char *text, size_t length, const json_t *root, const char *path, struct ipcc_error *err)
{
	struct scan s = {text + 1, text + length};
	struct piece name, value;
	size_t members = 0;

	while (take_member(&s, &name, &value)) {
		members++;
		/* A tensor that is no object is refused by the parser. */
		if (*value.at != '{' || piece_is(name, "__metadata__"))
			continue;
		int r = check_tensor(name, value, path, err);
		if (r != 0)
			return r;
	}
	/* The parser kept one of each name. */
	if (members != json_object_size(root))
		return fail_duplicate(text, length, path, err);
	return 0;
}
