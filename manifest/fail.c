/*
 * Filling struct ipcc_error.
 *
 * Texts pass through utf8_clean: names from files and peers reach messages, and a message ends on a terminal or in a
 * log, where a control character or half a character would do harm. Everything is formatted aside first, so that
 * arguments may point into `err` itself.
 */
#include "manifest/fail.h"

#include "manifest/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* More than a message holds, so that it is cut in one place. */
#define FORMAT_BYTES (sizeof(((struct ipcc_error *)0)->message) + 4)

static void format_message(char *text, size_t bytes, const char *format, va_list args)
{
	if (vsnprintf(text, bytes, format, args) < 0)
		text[0] = '\0';
}

/* How much of `text` fits into `bytes` bytes with its NUL, without cutting a character. */
static size_t fitting_length(const char *text, size_t bytes)
{
	size_t length = strnlen(text, bytes);
	if (length < bytes)
		return length;
	do
		length--;
	while (length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80);
	return length;
}

static void store_text(char *to, size_t bytes, const char *from)
{
	size_t length = from == NULL ? 0 : fitting_length(from, bytes);
	if (length > 0)
		memcpy(to, from, length);
	to[length] = '\0';
	utf8_clean(to);
}

/* A fresh error: nothing of an older one stays. */
static int store(struct ipcc_error *err, enum ipcc_code code, int sys_errno, const char *message)
{
	err->code = code;
	err->sys_errno = sys_errno;
	err->field[0] = err->expected[0] = err->got[0] = '\0';
	store_text(err->message, sizeof(err->message), message);
	return code;
}

int fail(struct ipcc_error *err, enum ipcc_code code, const char *format, ...)
{
	char message[FORMAT_BYTES];
	va_list args;

	if (err == NULL)
		return code;
	va_start(args, format);
	format_message(message, sizeof(message), format, args);
	va_end(args);
	return store(err, code, 0, message);
}

int fail_errno(struct ipcc_error *err, int sys_errno, const char *format, ...)
{
	enum ipcc_code code = sys_errno == ENOMEM ? IPCC_NO_MEMORY : IPCC_FAILED;
	char message[FORMAT_BYTES], reason[128];
	va_list args;

	if (err == NULL)
		return code;
	va_start(args, format);
	format_message(message, sizeof(message), format, args);
	va_end(args);

	const char *text = strerror_r(sys_errno, reason, sizeof(reason));
	/* The reason is worth more than the end of the message. */
	size_t length = fitting_length(message, sizeof(err->message) - strlen(text) - 2);
	snprintf(message + length, sizeof(message) - length, ": %s", text);
	return store(err, code, sys_errno, message);
}

int fail_mismatch(struct ipcc_error *err, const char *field, const char *expected, const char *got, const char *format,
		  ...)
{
	struct ipcc_error made = {.code = IPCC_MISMATCH};
	char message[FORMAT_BYTES];
	va_list args;

	if (err == NULL)
		return IPCC_MISMATCH;
	va_start(args, format);
	format_message(message, sizeof(message), format, args);
	va_end(args);
	store_text(made.message, sizeof(made.message), message);
	store_text(made.field, sizeof(made.field), field);
	store_text(made.expected, sizeof(made.expected), expected);
	store_text(made.got, sizeof(made.got), got);
	*err = made;
	return IPCC_MISMATCH;
}

int fail_within(struct ipcc_error *err, const char *format, ...)
{
	char prefix[256], joined[sizeof(prefix) + 2 + sizeof(err->message)];
	va_list args;

	if (err == NULL)
		return IPCC_FAILED;
	va_start(args, format);
	format_message(prefix, sizeof(prefix), format, args);
	va_end(args);
	snprintf(joined, sizeof(joined), "%s: %s", prefix, err->message);
	store_text(err->message, sizeof(err->message), joined);
	return err->code;
}

int exit_status(int code)
{
	switch (code) {
	case IPCC_BUSY:
	case IPCC_EXISTS:
	case IPCC_UNKNOWN:
		return IPCC_REFUSED;
	case IPCC_PROTOCOL:
		return IPCC_INVALID;
	case IPCC_TIMEOUT:
	case IPCC_CANCELED:
	case IPCC_NO_MEMORY:
		return IPCC_FAILED;
	default:
		return code >= IPCC_OK && code <= IPCC_NO_BROKER ? code : IPCC_FAILED;
	}
}
