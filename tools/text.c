/* Texts for people; see text.h. */
#include "tools/text.h"

#include "manifest/error.h"
#include "manifest/utf8.h"

#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void *checked(void *memory)
{
	if (memory == NULL) {
		fputs("ipc-cache: out of memory\n", stderr);
		exit(IPCC_FAILED);
	}
	return memory;
}

char *format_text_args(const char *format, va_list args)
{
	char *text;
	if (vasprintf(&text, format, args) < 0)
		text = NULL;
	return checked(text);
}

char *format_text(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	char *text = format_text_args(format, args);
	va_end(args);
	return text;
}

/* The value of a well-formed sequence. */
static uint32_t utf8_value(const char *at, size_t bytes)
{
	const unsigned char *s = (const unsigned char *)at;
	uint32_t value = bytes == 1 ? s[0] : s[0] & (0x7fU >> bytes);
	for (size_t i = 1; i < bytes; i++)
		value = value << 6 | (s[i] & 0x3f);
	return value;
}

/* Would a terminal or a reader take this for something else than a visible character? */
static bool must_escape(uint32_t c)
{
	return c < 0x20 || (c >= 0x7f && c < 0xa0) ||	 /* C0, DEL, C1 */
	       c == 0xad || c == 0x61c || c == 0x180e || /* soft hyphen, Arabic letter mark, Mongolian separator */
	       (c >= 0x200b && c <= 0x200f) ||		 /* zero width, direction marks */
	       (c >= 0x2028 && c <= 0x202e) ||		 /* line and paragraph ends, embeddings and overrides */
	       (c >= 0x2060 && c <= 0x206f) ||		 /* joiners, isolates */
	       c == 0xfeff || (c >= 0xfff9 && c <= 0xfffb) || (c >= 0xe0000 && c <= 0xe0fff);
}

char *escape(const char *text)
{
	size_t length = strlen(text);
	/* The longest escape for one byte is that of a C0 character, \u{1f}. */
	char *escaped = checked(malloc(length * 6 + 1)), *to = escaped;
	for (const char *at = text, *end = text + length; at < end;) {
		size_t bytes = utf8_sequence(at, (size_t)(end - at));
		uint32_t c = utf8_value(at, bytes);
		if (bytes == 0)
			to += sprintf(to, "\\x%02x", (unsigned char)*at);
		else if (must_escape(c))
			to += sprintf(to, "\\u{%x}", c);
		else
			to = mempcpy(to, at, bytes);
		at += bytes > 0 ? bytes : 1;
	}
	*to = '\0';
	return escaped;
}

size_t text_columns(const char *escaped)
{
	size_t columns = 0;
	for (; *escaped != '\0'; escaped++)
		columns += ((unsigned char)*escaped & 0xc0) != 0x80;
	return columns;
}

struct short_text text_size(uint64_t bytes)
{
	static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	struct short_text t;
	double value = (double)bytes;
	unsigned unit = 0;
	/* 1023.95 would be shown as 1024.0. */
	for (; value >= (unit == 0 ? 1024 : 1023.95) && unit < 6; unit++)
		value /= 1024;
	snprintf(t.text, sizeof(t.text), unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
	return t;
}

struct short_text text_bytes(uint64_t bytes)
{
	if (bytes < 1024)
		return text_size(bytes);
	struct short_text t;
	snprintf(t.text, sizeof(t.text), "%.20s (%llu bytes)", text_size(bytes).text, (unsigned long long)bytes);
	return t;
}

struct short_text text_duration(uint64_t ns)
{
	struct short_text t;
	unsigned long long s = ns / 1000000000;
	if (s < 60)
		snprintf(t.text, sizeof(t.text), "%llu s", s);
	else if (s < 3600)
		snprintf(t.text, sizeof(t.text), "%llu min %llu s", s / 60, s % 60);
	else if (s < 86400)
		snprintf(t.text, sizeof(t.text), "%llu h %llu min", s / 3600, s / 60 % 60);
	else
		snprintf(t.text, sizeof(t.text), "%llu d %llu h", s / 86400, s / 3600 % 24);
	return t;
}

struct short_text text_age(uint64_t since_ns)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
	/* The clock may have been set back since. */
	return text_duration(now_ns > since_ns ? now_ns - since_ns : 0);
}

struct short_text text_time(uint64_t ns)
{
	struct short_text t;
	time_t seconds = (time_t)(ns / 1000000000);
	struct tm tm;
	if (localtime_r(&seconds, &tm) == NULL || strftime(t.text, sizeof(t.text), "%Y-%m-%d %H:%M:%S %z", &tm) == 0)
		snprintf(t.text, sizeof(t.text), "%lld s", (long long)seconds);
	return t;
}

struct short_text text_user(uint32_t uid)
{
	struct short_text t;
	const struct passwd *user = getpwuid(uid);
	if (user != NULL)
		snprintf(t.text, sizeof(t.text), "%s", user->pw_name);
	else
		snprintf(t.text, sizeof(t.text), "%u", uid);
	return t;
}

struct short_text text_command(int32_t pid)
{
	struct short_text t = {.text = ""};
	char path[32];
	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	FILE *file = fopen(path, "re");
	if (file == NULL)
		return t;
	size_t length = fread(t.text, 1, sizeof(t.text) - 1, file);
	fclose(file);
	/* A command may have newlines in its name; the kernel adds one more at the end. */
	if (length > 0 && t.text[length - 1] == '\n')
		length--;
	t.text[length] = '\0';
	return t;
}

struct short_text text_rate(uint64_t bytes, uint64_t ns)
{
	struct short_text t;
	double rate = ns == 0 ? 0 : (double)bytes / (double)ns; /* bytes per ns are GB/s */
	if (rate >= 0.1)
		snprintf(t.text, sizeof(t.text), "%.2f GB/s", rate);
	else
		snprintf(t.text, sizeof(t.text), "%.2f MB/s", rate * 1000);
	return t;
}
