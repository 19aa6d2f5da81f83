/* Keys: rules, order, the packed form, comparison. */
#include "manifest/key.h"
#include "manifest/format.h"
#include "tests/unit/leaks.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

TestSuite(manifest_key, .init = leaks_before, .fini = leaks_after);

static const struct ipcc_field sample[] = {{"rank", "0"}, {"tp", ""}, {"model", "org/x"}};
static const char packed[] = "\x05\0\x05\0modelorg/x\x04\0\x01\0rank0\x02\0\0\0tp";

static void assert_invalid(const char *name, const char *value, const char *reason)
{
	struct ipcc_field field = {name, value};
	struct key key = {.count = 77};
	struct ipcc_error err = {0};

	cr_assert_eq(key_init(&key, &field, 1, &err), IPCC_INVALID, "\"%s\"", name);
	cr_assert_not_null(strstr(err.message, reason), "%s", err.message);
	cr_assert_eq(key.count, 77);
}

Test(manifest_key, fields_are_sorted_packed_and_hashed)
{
	struct key key;
	char id[HASH_TEXT_BYTES];

	cr_assert_eq(key_init(&key, sample, 3, NULL), 0);
	cr_assert_eq(key.count, 3);
	cr_assert_str_eq(key.fields[0].name, "model");
	cr_assert_str_eq(key.fields[1].name, "rank");
	cr_assert_str_eq(key.fields[2].name, "tp");
	cr_assert_eq(key.packed_bytes, sizeof(packed) - 1);
	cr_assert_arr_eq(key.packed, packed, key.packed_bytes);
	hash_text(&key.id, id);
	cr_assert_str_eq(id, "ab68c4e140dc82947a5d78159cc48379", "computed by another implementation of XXH3");
	cr_assert_str_eq(key_value(&key, "model"), "org/x");
	cr_assert_str_eq(key_value(&key, "tp"), "");
	cr_assert_null(key_value(&key, "t"));
	key_fini(&key);
	cr_assert_null(key.fields);
	key_fini(&key);
}

Test(manifest_key, the_packed_form_gives_the_same_key_in_any_order)
{
	static const char other[] = "\x02\0\0\0tp\x05\0\x05\0modelorg/x\x04\0\x01\0rank0";
	struct key a, b, c;

	cr_assert_eq(key_init(&a, sample, 3, NULL), 0);
	cr_assert_eq(key_init_packed(&b, packed, sizeof(packed) - 1, 3, NULL), 0);
	cr_assert_eq(key_init_packed(&c, other, sizeof(other) - 1, 3, NULL), 0);
	cr_assert(key_equal(&a, &b));
	cr_assert(key_equal(&b, &c));
	cr_assert_arr_eq(a.id.bytes, c.id.bytes, HASH_BYTES);
	key_fini(&a);
	key_fini(&b);
	key_fini(&c);
}

Test(manifest_key, a_key_without_fields_is_a_key)
{
	struct key none, some;

	cr_assert_eq(key_init(&none, NULL, 0, NULL), 0);
	cr_assert_eq(key_init(&some, sample, 1, NULL), 0);
	cr_assert_not(key_equal(&none, &some));
	cr_assert_eq(key_differences(&none, &some, false, NULL), 0);
	cr_assert_eq(key_differences(&none, &some, true, NULL), 1);
	key_fini(&none);
	cr_assert_eq(key_init_packed(&none, "", 0, 0, NULL), 0);
	key_fini(&none);
	key_fini(&some);
}

Test(manifest_key, names_and_values_have_rules)
{
	char long_name[MANIFEST_MAX_FIELD_NAME + 2], long_value[MANIFEST_MAX_FIELD_VALUE + 2];

	memset(long_name, 'n', sizeof(long_name) - 1);
	memset(long_value, 'v', sizeof(long_value) - 1);
	long_name[sizeof(long_name) - 1] = long_value[sizeof(long_value) - 1] = '\0';
	assert_invalid("", "v", "empty");
	assert_invalid("Model", "v", "a-z 0-9");
	assert_invalid("a b", "v", "a-z 0-9");
	assert_invalid("a=b", "v", "a-z 0-9");
	assert_invalid("\xc3\xa9", "v", "a-z 0-9");
	assert_invalid(long_name, "v", "63 bytes");
	assert_invalid("n", long_value, "4096 bytes");
	assert_invalid("n", "a\nb", "control");
	assert_invalid("n", "\x7f", "control");
	assert_invalid("n", "\xff", "UTF-8");
	assert_invalid(NULL, "v", "no name");
	assert_invalid("n", NULL, "no value");

	struct ipcc_field longest = {long_name + 1, long_value + 1};
	struct key key;
	cr_assert_eq(key_init(&key, &longest, 1, NULL), 0);
	key_fini(&key);
}

Test(manifest_key, a_name_can_be_there_once)
{
	const struct ipcc_field twice[] = {{"b", "1"}, {"a", "1"}, {"b", "2"}};
	struct ipcc_error err;
	struct key key;

	cr_assert_eq(key_init(&key, twice, 3, &err), IPCC_INVALID);
	cr_assert_str_eq(err.message, "key field \"b\" is there twice");
}

Test(manifest_key, counts_and_sizes_are_limited)
{
	struct ipcc_field fields[MANIFEST_MAX_FIELDS + 1];
	char names[MANIFEST_MAX_FIELDS + 1][8], value[1001] = "";
	struct ipcc_error err;
	struct key key;

	memset(value, 'v', sizeof(value) - 1);
	for (unsigned i = 0; i < array_length(fields); i++) {
		snprintf(names[i], sizeof(names[i]), "n%u", i);
		fields[i] = (struct ipcc_field){names[i], "v"};
	}
	cr_assert_eq(key_init(&key, fields, MANIFEST_MAX_FIELDS, NULL), 0);
	key_fini(&key);
	cr_assert_eq(key_init(&key, fields, MANIFEST_MAX_FIELDS + 1, &err), IPCC_INVALID);
	cr_assert_eq(key_init_packed(&key, "", 0, MANIFEST_MAX_FIELDS + 1, &err), IPCC_INVALID);
	cr_assert_eq(key_init_packed(&key, "", 0, UINT32_MAX, &err), IPCC_INVALID);
	for (unsigned i = 0; i < 17; i++)
		fields[i].value = value;
	cr_assert_eq(key_init(&key, fields, 16, NULL), 0);
	key_fini(&key);
	cr_assert_eq(key_init(&key, fields, 17, &err), IPCC_INVALID);
	cr_assert_not_null(strstr(err.message, "16384"), "%s", err.message);
}

Test(manifest_key, packed_bytes_that_lie_about_their_lengths_are_refused)
{
	struct key key;

	/* Cut anywhere, and the copy ends where its memory ends. */
	for (size_t length = 0; length < sizeof(packed) - 1; length++) {
		char *cut = malloc(length == 0 ? 1 : length);
		memcpy(cut, packed, length);
		cr_assert_eq(key_init_packed(&key, cut, length, 3, NULL), IPCC_INVALID, "%zu bytes", length);
		free(cut);
	}
	cr_assert_eq(key_init_packed(&key, packed, sizeof(packed) - 1, 2, NULL), IPCC_INVALID, "bytes left over");
	cr_assert_eq(key_init_packed(&key, packed, sizeof(packed) - 1, 4, NULL), IPCC_INVALID, "a field too few");
	cr_assert_eq(key_init_packed(&key, "\x03\0\0\0a\0b", 7, 1, NULL), IPCC_INVALID, "a NUL in the name");
	cr_assert_eq(key_init_packed(&key, "\x01\0\x03\0na\0b", 8, 1, NULL), IPCC_INVALID, "a NUL in the value");
}

Test(manifest_key, differences_are_counted_and_the_first_is_told)
{
	const struct ipcc_field want_fields[] = {{"a", "1"}, {"b", "2"}, {"d", "4"}};
	const struct ipcc_field have_fields[] = {{"a", "1"}, {"b", "3"}, {"c", "9"}, {"e", "5"}};
	struct key want, have;
	struct key_difference first = {0};

	cr_assert_eq(key_init(&want, want_fields, 3, NULL), 0);
	cr_assert_eq(key_init(&have, have_fields, 4, NULL), 0);
	cr_assert_eq(key_differences(&want, &want, true, &first), 0);
	cr_assert_null(first.field);
	cr_assert_eq(key_differences(&want, &have, false, &first), 2, "b differs, d is missing");
	cr_assert_str_eq(first.field, "b");
	cr_assert_str_eq(first.expected, "2");
	cr_assert_str_eq(first.got, "3");
	cr_assert_eq(key_differences(&want, &have, true, NULL), 4, "and c and e are surplus");
	key_fini(&want);
	key_fini(&have);
}

Test(manifest_key, a_missing_and_a_surplus_field_are_told_apart)
{
	const struct ipcc_field fields[] = {{"a", "1"}, {"b", "2"}};
	struct key both, only_b;
	struct key_difference first;

	cr_assert_eq(key_init(&both, fields, 2, NULL), 0);
	cr_assert_eq(key_init(&only_b, fields + 1, 1, NULL), 0);
	cr_assert_eq(key_differences(&both, &only_b, false, &first), 1);
	cr_assert_str_eq(first.field, "a");
	cr_assert_str_eq(first.expected, "1");
	cr_assert_null(first.got);
	cr_assert_eq(key_differences(&only_b, &both, false, &first), 0);
	cr_assert_eq(key_differences(&only_b, &both, true, &first), 1);
	cr_assert_str_eq(first.field, "a");
	cr_assert_null(first.expected);
	cr_assert_str_eq(first.got, "1");
	key_fini(&both);
	key_fini(&only_b);
}

Test(manifest_key, an_id_is_matched_by_four_digits_or_more)
{
	struct key key;

	cr_assert_eq(key_init(&key, sample, 3, NULL), 0);
	cr_assert(key_id_matches(&key, "ab68"));
	cr_assert(key_id_matches(&key, "AB68c4"));
	cr_assert(key_id_matches(&key, "ab68c4e140dc82947a5d78159cc48379"));
	cr_assert_not(key_id_matches(&key, "ab6"));
	cr_assert_not(key_id_matches(&key, ""));
	cr_assert_not(key_id_matches(&key, "ab69"));
	cr_assert_not(key_id_matches(&key, "ab68c4e140dc82947a5d78159cc483790"));
	key_fini(&key);
}
