/*
 * Walks the members of a JSON object in its text, without parsing their values: a header of 100,000 tensors is taken apart
 * here and parsed tensor by tensor, which is three times as fast as one large document and needs memory for one tensor.
 *
 * The walk checks the object's own punctuation. Names and values are pieces of the text that some parser has yet to
 * accept; if it accepts all of them, the object was valid JSON.
 */
#ifndef IPCC_LOADER_MEMBERS_H
#define IPCC_LOADER_MEMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A piece of the text; of a string, with its quotes. */
struct piece {
	const char *at;
	size_t length;
};

struct members {
	const char *at; /* after an error: where it is */
	const char *end;
	bool begun;
};

/* Over `text`, which begins with '{'. */
static inline struct members members_of(const char *text, size_t length)
{
	return (struct members){.at = text, .end = text + length};
}

/* The next member: 1; the end of the object: 0, with ->at behind its brace; bad punctuation: -1. */
int members_next(struct members *members, struct piece *name, struct piece *value);

/* Nearly all text is plain, and a parser finds nothing in it that cannot be seen: these tell, and take it as it is. What is
 * not plain is a parser's business, be it valid or not. */

/* Is it a string in which every character stands for itself: printable, valid UTF-8, no escapes? */
bool piece_is_plain_string(struct piece value);
/* An array of at most `room` whole numbers below 10^18 without signs, exponents or leading zeros, into numbers[]; -1 when it
 * is anything else, else how many there are. */
int piece_plain_numbers(struct piece value, uint64_t *numbers, unsigned room);

/* Is the string, a valid one, this text (without characters that JSON escapes)? Decodes it where it has escapes. */
bool piece_is(struct piece string, const char *text);

/* Has the value, a valid one, a minus sign that is not an exponent's, outside of its strings? Parsers lose that of -0. */
bool piece_has_negative_number(struct piece value);

#endif
