/* UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef IPCC_MANIFEST_UTF8_H
#define IPCC_MANIFEST_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the well-formed sequence at `at` (1 to 4, at most `left`), or 0. */
size_t utf8_sequence(const void *at, size_t left);

/* Well-formed and without NUL. */
bool utf8_valid(const void *bytes, size_t length);
/* That, and without control characters (C0, DEL, C1): fit to be printed on a line. */
bool utf8_printable(const void *bytes, size_t length);

/* Puts '?' for every control character and every byte that is not UTF-8. */
void utf8_clean(char *text);

#endif
