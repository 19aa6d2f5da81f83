/* See json.h. */
#include "loader/json.h"

#include "loader/shown.h"
#include "manifest/fail.h"

#include <stdbool.h>
#include <string.h>

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Has the text at most JSON_MAX_VALUES values? Counts what separates or opens them outside strings; the text need not be
 * valid. */
static bool is_bounded(const char *text, size_t length)
{
	bool in_string = false;
	size_t values = 0;

	for (size_t i = 0; i < length; i++) {
		char c = text[i];
		if (c == '"')
			in_string = !in_string;
		else if (in_string)
			i += c == '\\';
		else
			values += c == ',' || c == '[' || c == '{';
	}
	return values <= JSON_MAX_VALUES;
}

int json_read(const char *text, size_t length, size_t flags, const char *path, uint64_t offset, json_t **value,
	      struct ipcc_error *err)
{
	json_error_t error;

	/* jansson looks at each byte of the padding; a header may have 100 MB of it. */
	while (length > 0 && is_space(text[length - 1]))
		length--;
	if (!is_bounded(text, length))
		return fail(err, IPCC_REFUSED, "%s: more than %d JSON values at offset %lu", shown(path),
			    JSON_MAX_VALUES, (unsigned long)offset);
	json_t *parsed = json_loadb(text, length, flags, &error);
	if (parsed == NULL && json_error_code(&error) == json_error_out_of_memory)
		return fail(err, IPCC_NO_MEMORY, "%s: no memory to parse %zu bytes of JSON", shown(path), length);
	if (parsed == NULL)
		return fail(err, IPCC_INVALID, "%s: invalid JSON at offset %lu: %s", shown(path),
			    (unsigned long)offset + (unsigned long)(error.position > 0 ? error.position : 0),
			    shown(error.text));
	*value = parsed;
	return 0;
}
