/* What the command prints: facts for people, JSON for programs, errors for both. See output.h. */
#include "tools/output.h"

#include "manifest/fail.h"
#include "manifest/fd.h"

#include "broker/client/ipc_cache.h"
#include "manifest/utf8.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LABEL_COLUMNS 14

/* Runs at exit, after argp's own output too; only _exit may be called here. */
static void close_output(void)
{
	bool failed = ferror(stdout) != 0;
	errno = 0;
	/* A file system may find out that it is full as late as at the close. */
	if (fclose(stdout) != 0 || failed) {
		fprintf(stderr, "ipc-cache: standard output: %s\n", errno != 0 ? strerror(errno) : "cannot be written");
		_exit(IPCC_FAILED);
	}
}

void output_init(void)
{
	if (fd_guard_standard() < 0)
		_exit(IPCC_FAILED);
	signal(SIGPIPE, SIG_IGN);
	atexit(close_output);
}

void output_flush(void)
{
	if (fflush(stdout) != 0)
		exit(IPCC_FAILED);
}

int report_text(const struct common *common, const struct ipcc_error *err)
{
	char *message = escape(err->message);
	fprintf(stderr, "ipc-cache %s: %s\n", common->verb, message);
	free(message);
	return exit_status(err->code);
}

int report(const struct common *common, const struct ipcc_error *err)
{
	if (common->json) {
		bool differs = err->field[0] != '\0';
		print_json(json_pack("{s:{s:i, s:s, s:o, s:o, s:o, s:o}}", "error", "code", err->code, "name",
				     ipcc_code_name(err->code), "message", json_text(err->message), "field",
				     differs ? json_text(err->field) : json_null(), "expected",
				     differs ? json_text(err->expected) : json_null(), "got",
				     differs ? json_text(err->got) : json_null()));
	}
	return report_text(common, err);
}

void fact(const char *label, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	char *text = format_text_args(format, args);
	va_end(args);
	char *escaped = escape(text);
	printf("%-*s%s\n", LABEL_COLUMNS, label, escaped);
	free(escaped);
	free(text);
}

void print_json(json_t *document)
{
	checked(document);
	/* ASCII: whatever reorders or hides text on a terminal is escaped. A failed write shows in ferror, see close_output. */
	if (json_dumpf(document, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9)) == 0)
		putchar('\n');
	else if (!ferror(stdout))
		checked(NULL);
	json_decref(document);
}

json_t *json_text(const char *text)
{
	json_t *string = json_string(text);
	if (string != NULL)
		return string;
	char *valid = checked(strdup(text));
	utf8_clean(valid);
	string = checked(json_string(valid));
	free(valid);
	return string;
}

json_t *json_number(uint64_t value)
{
	if (value <= INT64_MAX)
		return checked(json_integer((json_int_t)value));
	char text[24];
	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	return checked(json_string(text));
}

json_t *json_hex(const void *bytes, size_t length)
{
	char *text = checked(malloc(2 * length + 1));
	for (size_t i = 0; i < length; i++)
		sprintf(text + 2 * i, "%02x", ((const unsigned char *)bytes)[i]);
	json_t *string = checked(json_stringn(text, 2 * length));
	free(text);
	return string;
}
