/* How errors are filled. */
#include "manifest/fail.h"
#include "manifest/utf8.h"
#include "tests/unit/leaks.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

TestSuite(manifest_fail, .init = leaks_before, .fini = leaks_after);

static struct ipcc_error stale(void)
{
	struct ipcc_error err = {.code = 99, .sys_errno = 98};
	memset(err.field, 'x', sizeof(err.field) - 1);
	memset(err.expected, 'x', sizeof(err.expected) - 1);
	memset(err.got, 'x', sizeof(err.got) - 1);
	memset(err.message, 'x', sizeof(err.message) - 1);
	return err;
}

Test(manifest_fail, a_failure_stores_code_and_message_and_nothing_of_an_older_one)
{
	struct ipcc_error err = stale();

	cr_assert_eq(fail(&err, IPCC_REFUSED, "%d of %s", 3, "them"), IPCC_REFUSED);
	cr_assert_eq(err.code, IPCC_REFUSED);
	cr_assert_eq(err.sys_errno, 0);
	cr_assert_str_eq(err.message, "3 of them");
	cr_assert_str_empty(err.field);
	cr_assert_str_empty(err.expected);
	cr_assert_str_empty(err.got);
}

Test(manifest_fail, who_wants_the_code_alone_passes_no_error)
{
	cr_assert_eq(fail(NULL, IPCC_BUSY, "x"), IPCC_BUSY);
	cr_assert_eq(fail_errno(NULL, EIO, "x"), IPCC_FAILED);
	cr_assert_eq(fail_errno(NULL, ENOMEM, "x"), IPCC_NO_MEMORY);
	cr_assert_eq(fail_mismatch(NULL, "a", "b", "c", "x"), IPCC_MISMATCH);
	cr_assert_eq(fail_within(NULL, "x"), IPCC_FAILED);
}

Test(manifest_fail, a_failed_call_says_which_and_why)
{
	struct ipcc_error err = stale();

	cr_assert_eq(fail_errno(&err, EACCES, "open %s", "/x"), IPCC_FAILED);
	cr_assert_str_eq(err.message, "open /x: Permission denied");
	cr_assert_eq(err.sys_errno, EACCES);
	cr_assert_eq(fail_errno(&err, ENOMEM, "mmap"), IPCC_NO_MEMORY);
	cr_assert_str_eq(err.message, "mmap: Cannot allocate memory");
}

Test(manifest_fail, the_reason_survives_a_message_that_is_too_long)
{
	struct ipcc_error err;
	char path[4096];

	memset(path, 'p', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	fail_errno(&err, ENOENT, "open %s", path);
	cr_assert_eq(strlen(err.message), sizeof(err.message) - 1);
	cr_assert_str_eq(err.message + strlen(err.message) - 27, ": No such file or directory");
}

Test(manifest_fail, a_mismatch_names_field_expected_and_got)
{
	struct ipcc_error err = stale();
	char value[1000];

	memset(value, 'v', sizeof(value) - 1);
	value[sizeof(value) - 1] = '\0';
	cr_assert_eq(fail_mismatch(&err, "dtype", "BF16", NULL, "no %s", "match"), IPCC_MISMATCH);
	cr_assert_eq(err.code, IPCC_MISMATCH);
	cr_assert_eq(err.sys_errno, 0);
	cr_assert_str_eq(err.field, "dtype");
	cr_assert_str_eq(err.expected, "BF16");
	cr_assert_str_empty(err.got);
	cr_assert_str_eq(err.message, "no match");
	fail_mismatch(&err, value, value, value, "%s", err.message);
	cr_assert_eq(strlen(err.field), sizeof(err.field) - 1);
	cr_assert_eq(strlen(err.got), sizeof(err.got) - 1);
	cr_assert_str_eq(err.message, "no match", "arguments may be of the error itself");
}

Test(manifest_fail, context_goes_before_the_message_and_keeps_the_code)
{
	struct ipcc_error err;

	fail_errno(&err, EIO, "read");
	cr_assert_eq(fail_within(&err, "model %s", "m"), IPCC_FAILED);
	cr_assert_str_eq(err.message, "model m: read: Input/output error");
	cr_assert_eq(err.sys_errno, EIO);
}

Test(manifest_fail, a_message_that_is_cut_stays_whole_characters)
{
	struct ipcc_error err;
	char text[1200] = "";

	for (size_t shift = 0; shift < 4; shift++) {
		memset(text, 'a', shift);
		for (size_t at = shift; at + 4 < sizeof(text); at += 4)
			memcpy(text + at, "\xf0\x9f\xa6\x80", 5);
		fail(&err, IPCC_INVALID, "%s", text);
		cr_assert_geq(strlen(err.message), sizeof(err.message) - 4);
		cr_assert_null(strchr(err.message, '?'), "cut inside a character with shift %zu", shift);
		fail_errno(&err, EIO, "%s", text);
		cr_assert_null(strchr(err.message, '?'), "cut inside a character with shift %zu", shift);
	}
}

Test(manifest_fail, hostile_text_cannot_write_control_characters_to_a_terminal)
{
	struct ipcc_error err;

	fail(&err, IPCC_INVALID, "%s", "a\x1b[2J\nb\x7f\xc2\x9b\xff\xed\xa0\x80z\xc3");
	cr_assert_str_eq(err.message, "a?[2J?b????"
				      "???z?");
}

Test(manifest_fail, utf8_is_that_of_rfc_3629)
{
	static const struct {
		const char *text;
		bool valid;
	} cases[] = {
		{"", true},
		{"plain ascii of more than eight bytes", true},
		{"\xc2\x80", true},
		{"\xdf\xbf", true},
		{"\xe0\xa0\x80", true},
		{"\xed\x9f\xbf", true},
		{"\xef\xbf\xbf", true},
		{"\xf0\x90\x80\x80", true},
		{"\xf4\x8f\xbf\xbf", true},
		{"\x80", false},	     /* a tail alone */
		{"\xc0\x80", false},	     /* overlong NUL */
		{"\xc1\xbf", false},	     /* overlong */
		{"\xc2", false},	     /* cut */
		{"\xc2\x41", false},	     /* no tail */
		{"\xe0\x9f\xbf", false},     /* overlong */
		{"\xed\xa0\x80", false},     /* surrogate */
		{"\xe1\x80", false},	     /* cut */
		{"\xe1\x80\x41", false},     /* no second tail */
		{"\xf0\x8f\xbf\xbf", false}, /* overlong */
		{"\xf4\x90\x80\x80", false}, /* above U+10FFFF */
		{"\xf5\x80\x80\x80", false}, /* above U+10FFFF */
		{"\xf1\x80\x80", false},     /* cut */
		{"\xf1\x80\x41\x80", false}, /* broken tail */
		{"\xff", false},
		{"12345678\xff", false}, /* behind the fast path's word */
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		cr_assert_eq(utf8_valid(cases[i].text, strlen(cases[i].text)), cases[i].valid, "case %zu", i);
	cr_assert_not(utf8_valid("12345\0007890", 10), "NUL is no character of a string");
	cr_assert_not(utf8_valid("1\0002", 3));
	cr_assert(utf8_printable("h\xc3\xa9 \xc2\xa0", 6));
	cr_assert_not(utf8_printable("\xc2\x85", 2), "a C1 control character");
	cr_assert_not(utf8_printable("a\tb", 3));
	cr_assert_not(utf8_printable("\x7f", 1));
	cr_assert(utf8_valid("a\tb\x7f", 4));
}
