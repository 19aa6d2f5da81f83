/*
 * See shown.h. The text is cut in bytes of the source first, so that the escapes of what is kept always fit where the
 * text is ordinary; where it is not, the copy simply stops.
 */
#include "loader/shown.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define KEPT_HEAD 60
#define KEPT_TAIL 160

static bool is_continuation(unsigned char c)
{
	return (c & 0xc0) == 0x80;
}

/* Bytes of the printable UTF-8 character at `s`, or 0. Stops at the NUL by itself. */
static size_t character_bytes(const unsigned char *s)
{
	if (s[0] >= 0x20 && s[0] < 0x7f)
		return 1;
	if (s[0] >= 0xc2 && s[0] <= 0xdf && is_continuation(s[1]))
		return s[0] == 0xc2 && s[1] < 0xa0 ? 0 : 2; /* C1 controls */
	if ((s[0] & 0xf0) == 0xe0 && is_continuation(s[1]) && is_continuation(s[2])) {
		if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0))
			return 0; /* overlong, surrogate */
		return 3;
	}
	if (s[0] >= 0xf0 && s[0] <= 0xf4 && is_continuation(s[1]) && is_continuation(s[2]) && is_continuation(s[3])) {
		if ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90))
			return 0;
		return 4;
	}
	return 0;
}

/* Appends the characters of [text, end) to s at *used, as long as they fit. */
static void append(struct shown *s, size_t *used, const char *text, const char *end)
{
	while (text < end) {
		size_t bytes = character_bytes((const unsigned char *)text);
		size_t needed = bytes != 0 ? bytes : 4;
		if (*used + needed >= sizeof(s->text))
			break;
		if (bytes != 0)
			memcpy(s->text + *used, text, bytes);
		else
			snprintf(s->text + *used, 5, "\\x%02x", (unsigned char)*text);
		*used += needed;
		text += bytes != 0 ? bytes : 1;
	}
	s->text[*used] = '\0';
}

const char *shown_text(struct shown *s, const char *text)
{
	static const char ellipsis[] = "...";
	size_t length = strlen(text);
	size_t used = 0;
	const char *tail = text;

	if (length >= sizeof(s->text)) {
		const char *head_end = text + KEPT_HEAD;
		while (head_end > text && is_continuation((unsigned char)*head_end))
			head_end--;
		append(s, &used, text, head_end);
		append(s, &used, ellipsis, ellipsis + strlen(ellipsis));
		tail = text + length - KEPT_TAIL;
		while (is_continuation((unsigned char)*tail))
			tail++;
	}
	append(s, &used, tail, text + length);
	return s->text;
}
