/*
 * Little-endian types for everything that leaves the process, checked arithmetic for everything that enters it, and a
 * bounded cursor over received bytes.
 *
 * le16, le32 and le64 are structs, so that a forgotten conversion does not compile.
 */
#ifndef IPCC_MANIFEST_BYTES_H
#define IPCC_MANIFEST_BYTES_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
	uint16_t raw;
} le16;
typedef struct {
	uint32_t raw;
} le32;
typedef struct {
	uint64_t raw;
} le64;

static inline uint16_t le16_get(le16 v)
{
	return le16toh(v.raw);
}
static inline uint32_t le32_get(le32 v)
{
	return le32toh(v.raw);
}
static inline uint64_t le64_get(le64 v)
{
	return le64toh(v.raw);
}
static inline le16 le16_make(uint16_t v)
{
	return (le16){htole16(v)};
}
static inline le32 le32_make(uint32_t v)
{
	return (le32){htole32(v)};
}
static inline le64 le64_make(uint64_t v)
{
	return (le64){htole64(v)};
}

/* Each returns true when the result does not fit, as the builtins do. */
#define add_overflows(a, b, result) __builtin_add_overflow(a, b, result)
#define mul_overflows(a, b, result) __builtin_mul_overflow(a, b, result)

#define array_length(a) (sizeof(a) / sizeof((a)[0]))

/* Round up to a power of two; the caller knows that it does not overflow. */
static inline uint64_t align_up(uint64_t value, uint64_t alignment)
{
	return (value + alignment - 1) & ~(alignment - 1);
}

/* Does [offset, offset + bytes) lie inside [0, total)? */
static inline bool range_inside(uint64_t offset, uint64_t bytes, uint64_t total)
{
	return offset <= total && bytes <= total - offset;
}

/* Reads received bytes front to back. After the first read beyond the end `failed` stays set and every further read
 * gives zeros or NULL, so a parser checks once, at its end. */
struct cursor {
	const uint8_t *at;
	size_t left;
	bool failed;
};

static inline struct cursor cursor_over(const void *bytes, size_t length)
{
	return (struct cursor){.at = bytes, .left = length, .failed = false};
}

/* The next `length` bytes in place, or NULL. */
static inline const void *cursor_take(struct cursor *c, size_t length)
{
	if (c->failed || length > c->left) {
		c->failed = true;
		return NULL;
	}
	const void *taken = c->at;
	c->at += length;
	c->left -= length;
	return taken;
}

/* Copies the next `length` bytes to `to`, zeros when there are too few. */
static inline void cursor_copy(struct cursor *c, void *to, size_t length)
{
	const void *from = cursor_take(c, length);
	if (from != NULL)
		memcpy(to, from, length);
	else
		memset(to, 0, length);
}

/* True when everything was read and nothing was read beyond the end. */
static inline bool cursor_finished(const struct cursor *c)
{
	return !c->failed && c->left == 0;
}

#endif
