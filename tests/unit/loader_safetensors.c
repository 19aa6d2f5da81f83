/* The header parser: the shared cases with their verdicts, what it gives, its messages, and its speed. */
#include "loader/safetensors.h"
#include "loader/shown.h"
#include "manifest/dtype.h"
#include "tests/unit/leaks.h"
#include "tests/unit/loader_files.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CASES "tests/data/safetensors-cases/"

TestSuite(loader_safetensors, .init = leaks_before, .fini = leaks_after);

static size_t decode_base64(const char *text, uint8_t *to)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	uint32_t bits = 0;
	unsigned count = 0;
	size_t used = 0;

	for (; *text != '\0' && *text != '='; text++) {
		bits = bits << 6 | (uint32_t)(strchr(digits, *text) - digits);
		count += 6;
		if (count >= 8) {
			count -= 8;
			to[used++] = (uint8_t)(bits >> count);
		}
	}
	return used;
}

/* The largest header that is allowed, all of it white space behind "{}"; not in cases.json for its size. */
static void write_largest(const struct files *files)
{
	const size_t length = 100000000;
	char *bytes = malloc(length + 8);

	memset(bytes + 8, ' ', length);
	memcpy(bytes, "\x00\xe1\xf5\x05\x00\x00\x00\x00{}", 10);
	files_write(files, "06_n_exact_100MB", bytes, length + 8);
	free(bytes);
}

static void write_cases(const struct files *files)
{
	json_t *cases = json_load_file(CASES "cases.json", 0, NULL);
	const char *name;
	json_t *value;

	cr_assert_not_null(cases, "run the tests in the project's root folder");
	json_object_foreach(cases, name, value)
	{
		uint8_t *bytes = malloc(json_string_length(value) + 1);
		size_t length = decode_base64(json_string_value(value), bytes);
		files_write(files, name, bytes, length);
		free(bytes);
	}
	json_decref(cases);
	write_largest(files);
}

Test(loader_safetensors, all_shared_cases_get_the_expected_verdict)
{
	struct files files;
	char line[256], name[128], verdict[16];
	unsigned count = 0;

	files_init(&files);
	write_cases(&files);
	FILE *expected = fopen(CASES "expected.tsv", "r");
	cr_assert_not_null(expected);
	while (fgets(line, sizeof(line), expected) != NULL) {
		if (line[0] == '#')
			continue;
		cr_assert_eq(sscanf(line, "%127s %15s", name, verdict), 2);
		struct safetensors st = {0};
		struct ipcc_error err = {0};
		int r = safetensors_read(&st, AT_FDCWD, files_path(&files, name), name, &err);
		cr_expect_str_eq(r == 0 ? "ACCEPT" : "REJECT", verdict, "%s: %s", name, err.message);
		cr_expect(r == 0 || strncmp(err.message, name, strlen(name)) == 0, "%s names the file", err.message);
		safetensors_fini(&st);
		count++;
	}
	fclose(expected);
	cr_assert_eq(count, 82);
	files_fini(&files);
}

/* Parses a file of that header and `data_bytes` bytes of data. */
static int read_header(const char *header, size_t data_bytes, struct safetensors *st, struct ipcc_error *err)
{
	struct files files;

	files_init(&files);
	files_write_tensors(&files, "x", header, data_bytes, 0);
	int r = safetensors_read(st, AT_FDCWD, files_path(&files, "x"), "x", err);
	files_fini(&files);
	return r;
}

Test(loader_safetensors, tensors_come_in_the_order_of_the_data)
{
	struct safetensors st;
	struct ipcc_error err = {0};
	const char *header = "{\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
			     "\"__metadata__\":{\"format\":\"pt\",\"n\":\"\\u00e9\"},"
			     "\"z\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[4,4]},"
			     "\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}";

	cr_assert_eq(read_header(header, 28, &st, &err), 0, "%s", err.message);
	cr_assert_eq(st.tensor_count, 3);
	cr_assert_eq(st.data_begin, 8 + strlen(header));
	cr_assert_str_eq(st.tensors[0].name, "a");
	cr_assert_str_eq(st.tensors[1].name, "z");
	cr_assert_str_eq(st.tensors[2].name, "b");
	cr_assert_eq(st.tensors[2].dtype, IPCC_DTYPE_F32);
	cr_assert_eq(st.tensors[2].rank, 2);
	cr_assert_eq(st.tensors[2].shape[0], 2);
	cr_assert_eq(st.tensors[2].shape[1], 3);
	cr_assert_eq(st.tensors[2].begin, st.data_begin + 4);
	cr_assert_eq(st.tensors[2].end, st.data_begin + 28);
	cr_assert_eq(st.metadata_count, 2);
	cr_assert_str_eq(st.metadata[0].name, "format");
	cr_assert_str_eq(st.metadata[0].value, "pt");
	cr_assert_str_eq(st.metadata[1].value, "\u00e9");
	cr_assert_eq(st.source.bytes, st.data_begin + 28);
	safetensors_fini(&st);
}

static const struct {
	const char *header;
	size_t data_bytes;
	int code;
	const char *message;
} refusals[] = {
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[1],"
	 "\"data_offsets\":[1,2]}}",
	 2, IPCC_INVALID, "x: tensor 'a' is there twice in the header"},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"sh\\u0061pe\":[1],\"data_offsets\":[0,1]}}", 1, IPCC_INVALID,
	 "x: tensor 'a': shape is there twice"},
	{"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, IPCC_INVALID,
	 "dtype is there twice"},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"data_offsets\":[0,1]}}", 1, IPCC_INVALID,
	 "data_offsets is there twice"},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[-0],\"data_offsets\":[0,0]}}", 0, IPCC_INVALID,
	 "x: tensor 'a': shape has a negative number"},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[-5],\"data_offsets\":[0,0]}}", 0, IPCC_INVALID, "has a negative number"},
	{"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, IPCC_INVALID, "dtype is missing"},
	{"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, IPCC_INVALID, "shape is missing"},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, IPCC_INVALID, "data_offsets is missing"},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, IPCC_INVALID,
	 "x: tensor 'a': data_offsets [0, 1], but shape and dtype need 2 bytes"},
	{"{\"a\\u001b[31m\":{\"dtype\":\"U7\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, IPCC_INVALID,
	 "tensor 'a\\x1b[31m': unknown dtype 'U7'"},
	{"{\"a\":[[", 0, IPCC_INVALID, "x: invalid JSON at offset 15"},
	{"{\"__metadata__\":{},}", 0, IPCC_INVALID, "x: invalid JSON at offset 27"},
	{"{\"__metadata__\":{} \"a\":1}", 0, IPCC_INVALID, "x: invalid JSON at offset 27"},
	{"{\"__metadata__\" {}}", 0, IPCC_INVALID, "x: invalid JSON at offset 24"},
	{"{\"__metadata__\":}", 0, IPCC_INVALID, "x: invalid JSON at offset 24"},
	{"{\"a\":1]}", 0, IPCC_INVALID, "x: tensor 'a' is not an object"},
	{"{\"__metadata__\":null]", 0, IPCC_INVALID, "x: invalid JSON at offset 28"},
	{"{,}", 0, IPCC_INVALID, "x: invalid JSON at offset 9"},
	{" {}", 0, IPCC_INVALID, "x: no '{' at offset 8"},
};

Test(loader_safetensors, refusals_name_file_tensor_and_reason)
{
	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		struct safetensors st;
		struct ipcc_error err = {0};
		int r = read_header(refusals[i].header, refusals[i].data_bytes, &st, &err);
		expect_error(r, &err, refusals[i].code, refusals[i].message);
	}
}

Test(loader_safetensors, a_header_of_too_many_values_is_refused_before_it_is_parsed)
{
	struct safetensors st;
	struct ipcc_error err = {0};
	size_t length = 2 * 8000001;
	char *header = malloc(length + 16);

	memcpy(header, "{\"a\":[", 6);
	for (size_t i = 0; i < length; i += 2)
		memcpy(header + 6 + i, "1,", 2);
	memcpy(header + 6 + length, "1]}", 4);
	expect_error(read_header(header, 0, &st, &err), &err, IPCC_REFUSED, "JSON values");
	free(header);
}

Test(loader_safetensors, a_fifo_or_a_folder_is_refused_at_once)
{
	struct safetensors st;
	struct ipcc_error err = {0};
	struct files files;

	files_init(&files);
	cr_assert_eq(mkfifo(files_path(&files, "fifo"), 0600), 0);
	expect_error(safetensors_read(&st, AT_FDCWD, files_path(&files, "fifo"), "fifo", &err), &err, IPCC_INVALID,
		     "fifo: a FIFO, not a regular file");
	expect_error(safetensors_read(&st, AT_FDCWD, files.folder, "folder", &err), &err, IPCC_INVALID,
		     "folder: a folder, not a regular file");
	expect_error(safetensors_read(&st, AT_FDCWD, "/dev/null", "null", &err), &err, IPCC_INVALID, "null: a device");
	files_fini(&files);
}

Test(loader_safetensors, a_link_to_nowhere_is_named_with_its_target)
{
	struct safetensors st;
	struct ipcc_error err = {0};
	struct files files;

	files_init(&files);
	cr_assert_eq(symlink("../../blobs/abc", files_path(&files, "link")), 0);
	expect_error(safetensors_read(&st, AT_FDCWD, files_path(&files, "link"), "link", &err), &err, IPCC_NOT_FOUND,
		     "link: a symbolic link to ../../blobs/abc, which does not exist");
	files_fini(&files);
}

Test(loader_safetensors, a_hundred_thousand_tensors_parse_in_linear_time)
{
	const unsigned count = 100000;
	struct safetensors st;
	struct ipcc_error err = {0};
	struct timespec before, after;
	char *header;
	size_t length;

	FILE *text = open_memstream(&header, &length);
	fputc('{', text);
	for (unsigned i = 0; i < count; i++)
		fprintf(text, "%s\"layers.%u.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[%u,%u]}",
			i > 0 ? "," : "", i, 4 * i, 4 * i + 4);
	fputc('}', text);
	fclose(text);
	clock_gettime(CLOCK_MONOTONIC, &before);
	cr_assert_eq(read_header(header, (size_t)4 * count, &st, &err), 0, "%s", err.message);
	clock_gettime(CLOCK_MONOTONIC, &after);
	cr_assert_eq(st.tensor_count, count);
	cr_assert_str_eq(st.tensors[99999].name, "layers.99999.weight");
	/* Generous, for sanitizers and busy machines: what is quadratic takes minutes. */
	cr_assert_lt(after.tv_sec - before.tv_sec, 20);
	safetensors_fini(&st);
	free(header);
}

Test(loader_safetensors, shown_text_is_bounded_and_without_control_characters)
{
	char name[1000];
	struct shown s;

	cr_assert_str_eq(shown_text(&s, "model.layers.0"), "model.layers.0");
	cr_assert_str_eq(shown_text(&s, "a\nb\x7f\xff\u00e9\xc2\x9b"), "a\\x0ab\\x7f\\xff\u00e9\\xc2\\x9b");
	memset(name, 'n', sizeof(name));
	name[0] = 'A';
	memcpy(name + sizeof(name) - 2, "Z", 2);
	shown_text(&s, name);
	cr_assert_lt(strlen(s.text), sizeof(s.text));
	cr_assert_eq(s.text[0], 'A');
	cr_assert_eq(s.text[strlen(s.text) - 1], 'Z');
	cr_assert_not_null(strstr(s.text, "..."));
	memset(name, '\n', sizeof(name) - 1);
	cr_assert_lt(strlen(shown_text(&s, name)), sizeof(s.text));
}
