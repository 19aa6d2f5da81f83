/* See lat.h. */
#include "bpf/lat/lat.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include <wctype.h>

#define SHOWN_BYTES 1024
#define SHOWN_TEXTS 4
#define MOST_BYTES  16 /* of one character as shown */

int lat_fail(struct lat_error *err, int status, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	vsnprintf(err->text, sizeof(err->text), format, list);
	va_end(list);
	return err->status = status;
}

void *lat_checked(void *memory)
{
	if (memory == NULL) {
		fputs("ipc-cache-lat: out of memory\n", stderr);
		exit(LAT_FAILED);
	}
	return memory;
}

const char *lat_shown(const char *text)
{
	static char texts[SHOWN_TEXTS][SHOWN_BYTES];
	static unsigned next;
	char *shown = texts[next++ % SHOWN_TEXTS];
	size_t length = 0, left = strlen(text);
	mbstate_t state = {0};
	while (left > 0 && length + MOST_BYTES < SHOWN_BYTES) {
		wchar_t c;
		size_t bytes = mbrtowc(&c, text, left, &state);
		if (bytes == 0 || bytes > left || !iswprint((wint_t)c)) {
			length += (size_t)sprintf(shown + length, "\\x%02x", (unsigned char)*text);
			memset(&state, 0, sizeof(state));
			bytes = 1;
		} else {
			memcpy(shown + length, text, bytes);
			length += bytes;
		}
		text += bytes;
		left -= bytes;
	}
	shown[length] = '\0';
	return shown;
}
