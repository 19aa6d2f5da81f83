/*
 * Texts for people. Names come from files and from other users, so they are shown escaped: control characters, terminal
 * sequences, invisible characters and those that reorder text appear as \u{...}, invalid UTF-8 as \xNN.
 *
 * Memory that runs short ends the command: a command line has nothing to save.
 */
#ifndef IPCC_TOOLS_TEXT_H
#define IPCC_TOOLS_TEXT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* Returns `memory`, or ends the command if that is NULL. */
void *checked(void *memory);
/* The formatted text in memory that the caller frees. */
char *format_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
char *format_text_args(const char *format, va_list args) __attribute__((format(printf, 1, 0)));
/* The escaped text in memory that the caller frees. */
char *escape(const char *text);
/* How many columns a terminal gives to an escaped text, every character taken as one wide. */
size_t text_columns(const char *escaped);

/* Short texts by value, for use as printf arguments: text_size(n).text. */
struct short_text {
	char text[64];
};
struct short_text text_size(uint64_t bytes);		  /* "86.7 MiB" */
struct short_text text_bytes(uint64_t bytes);		  /* "86.7 MiB (90868376 bytes)" */
struct short_text text_duration(uint64_t ns);		  /* "12 s", "3 h 5 min" */
struct short_text text_age(uint64_t since_ns);		  /* the duration from a CLOCK_REALTIME until now */
struct short_text text_time(uint64_t ns);		  /* of CLOCK_REALTIME: "2026-01-31 12:00:00 +0000" */
struct short_text text_user(uint32_t uid);		  /* "root", or the number */
struct short_text text_command(int32_t pid);		  /* "python3" from /proc; empty when not readable */
struct short_text text_rate(uint64_t bytes, uint64_t ns); /* "1.25 GB/s" */

#endif
