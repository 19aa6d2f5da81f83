/* The table of RFC 3629, section 4: the first byte decides the length and which second bytes are allowed. */
#include "manifest/utf8.h"

#include <string.h>

static bool is_tail(uint8_t byte)
{
	return (byte & 0xc0) == 0x80;
}

static size_t sequence_of_three(const uint8_t *p)
{
	uint8_t low = p[0] == 0xe0 ? 0xa0 : 0x80;  /* below are overlong forms */
	uint8_t high = p[0] == 0xed ? 0x9f : 0xbf; /* above are surrogates */
	return p[1] >= low && p[1] <= high && is_tail(p[2]) ? 3 : 0;
}

static size_t sequence_of_four(const uint8_t *p)
{
	uint8_t low = p[0] == 0xf0 ? 0x90 : 0x80;
	uint8_t high = p[0] == 0xf4 ? 0x8f : 0xbf; /* above is beyond U+10FFFF */
	return p[1] >= low && p[1] <= high && is_tail(p[2]) && is_tail(p[3]) ? 4 : 0;
}

size_t utf8_sequence(const void *at, size_t left)
{
	const uint8_t *p = at;
	if (left >= 1 && p[0] < 0x80)
		return 1;
	if (left >= 2 && p[0] >= 0xc2 && p[0] <= 0xdf)
		return is_tail(p[1]) ? 2 : 0;
	if (left >= 3 && p[0] >= 0xe0 && p[0] <= 0xef)
		return sequence_of_three(p);
	if (left >= 4 && p[0] >= 0xf0 && p[0] <= 0xf4)
		return sequence_of_four(p);
	return 0;
}

/* Eight bytes of ASCII without NUL: nearly all there is in practice. */
static bool is_plain_word(const uint8_t *p)
{
	const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones << 7;
	uint64_t word;
	memcpy(&word, p, sizeof(word));
	return (word & tops) == 0 && ((word - ones) & tops) == 0;
}

bool utf8_valid(const void *bytes, size_t length)
{
	const uint8_t *p = bytes, *end = p + length;
	while (p < end) {
		if (end - p >= 8 && is_plain_word(p)) {
			p += 8;
			continue;
		}
		size_t taken = utf8_sequence(p, (size_t)(end - p));
		if (taken == 0 || *p == 0)
			return false;
		p += taken;
	}
	return true;
}

static bool is_control(const uint8_t *p, size_t length)
{
	return length == 1 ? p[0] < 0x20 || p[0] == 0x7f : length == 2 && p[0] == 0xc2 && p[1] < 0xa0;
}

bool utf8_printable(const void *bytes, size_t length)
{
	const uint8_t *p = bytes, *end = p + length;
	while (p < end) {
		size_t taken = utf8_sequence(p, (size_t)(end - p));
		if (taken == 0 || is_control(p, taken))
			return false;
		p += taken;
	}
	return true;
}

void utf8_clean(char *text)
{
	uint8_t *p = (uint8_t *)text, *end = p + strlen(text);
	while (p < end) {
		size_t taken = utf8_sequence(p, (size_t)(end - p));
		size_t step = taken == 0 ? 1 : taken;
		if (taken == 0 || is_control(p, taken))
			memset(p, '?', step);
		p += step;
	}
}
