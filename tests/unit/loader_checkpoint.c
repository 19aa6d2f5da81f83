/* Files, folders and sharded folders: what opens, and every refusal with its message. */
#include "loader/checkpoint.h"
#include "tests/unit/leaks.h"
#include "tests/unit/loader_files.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(loader_checkpoint, .init = leaks_before, .fini = leaks_after);

#define TENSOR_A "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"
#define TENSOR_B "{\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"
#define TENSORS_AB                                                                                                     \
	"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],"        \
	"\"data_offsets\":[4,8]}}"

/* Asserts that the folder is refused, then removes it. */
static void expect_refused(struct files *files, const char *name, int code, const char *part)
{
	struct checkpoint cp;
	struct ipcc_error err = {0};

	int r = checkpoint_open(&cp, name != NULL ? files_path(files, name) : files->folder, &err);
	expect_error(r, &err, code, part);
	files_fini(files);
}

static void write_index(const struct files *files, const char *weight_map)
{
	char text[1024];

	snprintf(text, sizeof(text), "{\"metadata\":{\"total_size\":1},\"weight_map\":%s}", weight_map);
	files_write_text(files, CHECKPOINT_INDEX, text);
}

Test(loader_checkpoint, one_file_opens_under_the_name_that_was_given)
{
	struct checkpoint cp;
	struct ipcc_error err = {0};
	struct files files;

	files_init(&files);
	files_write_tensors(&files, "blobs/0123", TENSORS_AB, 8, 0);
	cr_assert_eq(symlink("blobs/0123", files_path(&files, "model.safetensors")), 0);
	cr_assert_eq(checkpoint_open(&cp, files_path(&files, "model.safetensors"), &err), 0, "%s", err.message);
	cr_assert_eq(cp.folder, false);
	cr_assert_str_eq(cp.files[0].name, "model.safetensors");
	cr_assert_str_eq(cp.root + strlen(cp.root) - 11, "/blobs/0123");
	cr_assert_eq(cp.tensor_count, 2);
	cr_assert_eq(cp.tensor_bytes, 8);
	cr_assert_str_eq(checkpoint_tensor(&cp, 1)->name, "b");
	checkpoint_fini(&cp);
	files_fini(&files);
}

Test(loader_checkpoint, a_folder_opens_its_model_or_its_only_file)
{
	struct checkpoint cp;
	struct ipcc_error err = {0};
	struct files files;

	files_init(&files);
	files_write_tensors(&files, "other.safetensors", TENSOR_B, 4, 0);
	files_write_text(&files, "pytorch_model.bin", "");
	cr_assert_eq(checkpoint_open(&cp, files.folder, &err), 0, "%s", err.message);
	cr_assert_str_eq(cp.files[0].name, "other.safetensors");
	checkpoint_fini(&cp);
	files_write_tensors(&files, "model.safetensors", TENSOR_A, 4, 0);
	cr_assert_eq(checkpoint_open(&cp, files.folder, &err), 0, "%s", err.message);
	cr_assert_str_eq(cp.files[0].name, "model.safetensors");
	cr_assert(cp.folder && !cp.indexed);
	checkpoint_fini(&cp);
	files_fini(&files);
}

Test(loader_checkpoint, a_sharded_folder_opens_with_shards_by_name)
{
	struct checkpoint cp;
	struct ipcc_error err = {0};
	struct files files;

	files_init(&files);
	files_write_tensors(&files, "model-2.safetensors", TENSOR_A, 4, 0);
	files_write_tensors(&files, "sub/model-3.safetensors", "{}", 0, 0);
	files_write_tensors(&files, "model-1.safetensors", TENSOR_B, 4, 0);
	write_index(&files, "{\"a\":\"model-2.safetensors\",\"b\":\"model-1.safetensors\"}");
	cr_assert_eq(checkpoint_open(&cp, files.folder, &err), 0, "%s", err.message);
	cr_assert(cp.indexed);
	cr_assert_eq(cp.file_count, 2);
	cr_assert_str_eq(cp.files[0].name, "model-1.safetensors");
	cr_assert_eq(cp.files[1].first_tensor, 1);
	cr_assert_str_eq(checkpoint_tensor(&cp, 0)->name, "b");
	cr_assert_str_eq(checkpoint_tensor(&cp, 1)->name, "a");
	cr_assert_eq(cp.file_bytes, cp.files[0].header.source.bytes + cp.files[1].header.source.bytes);
	checkpoint_fini(&cp);
	files_fini(&files);
}

Test(loader_checkpoint, a_file_that_was_replaced_is_not_opened_again)
{
	struct checkpoint cp;
	struct ipcc_error err = {0};
	struct files files;
	int fd = -1;

	files_init(&files);
	files_write_tensors(&files, "model.safetensors", TENSOR_A, 4, 0);
	cr_assert_eq(checkpoint_open(&cp, files.folder, &err), 0);
	cr_assert_eq(checkpoint_open_file(&cp, 0, &fd, &err), 0);
	close(fd);
	files_write_tensors(&files, "new", TENSOR_A, 4, 0);
	cr_assert_eq(rename(files_path(&files, "new"), files_path(&files, "model.safetensors")), 0);
	expect_error(checkpoint_open_file(&cp, 0, &fd, &err), &err, IPCC_INVALID,
		     "model.safetensors: changed while being read: its inode");
	checkpoint_fini(&cp);
	files_fini(&files);
}

Test(loader_checkpoint, nothing_there_is_not_found)
{
	struct files files;

	files_init(&files);
	expect_refused(&files, "none", IPCC_NOT_FOUND, "/none: no such file or folder");
	files_init(&files);
	expect_refused(&files, NULL, IPCC_NOT_FOUND, "no model in this folder");
	files_init(&files);
	cr_assert_eq(symlink("gone", files_path(&files, "model.safetensors")), 0);
	expect_refused(&files, NULL, IPCC_NOT_FOUND,
		       "model.safetensors: a symbolic link to gone, which does not exist");
}

Test(loader_checkpoint, several_files_without_an_index_are_refused)
{
	struct files files;

	files_init(&files);
	files_write_tensors(&files, "x.safetensors", TENSOR_A, 4, 0);
	files_write_tensors(&files, "y.safetensors", TENSOR_B, 4, 0);
	expect_refused(&files, NULL, IPCC_REFUSED,
		       "2 safetensors files (x.safetensors, ...) and no model.safetensors.index");
}

Test(loader_checkpoint, the_index_file_itself_is_no_model)
{
	struct files files;

	files_init(&files);
	write_index(&files, "{}");
	expect_refused(&files, CHECKPOINT_INDEX, IPCC_USAGE, "name its folder instead");
}

static void expect_index_refused(const char *weight_map, int code, const char *part)
{
	struct files files;

	files_init(&files);
	files_write_tensors(&files, "s1", TENSOR_A, 4, 0);
	files_write_tensors(&files, "s2", TENSOR_B, 4, 0);
	files_write_tensors(&files, "both", TENSORS_AB, 8, 0);
	write_index(&files, weight_map);
	expect_refused(&files, NULL, code, part);
}

Test(loader_checkpoint, shard_paths_that_leave_the_folder_are_refused)
{
	static const char *const names[] = {"/etc/passwd", "../s1", "sub/../s1", "s1/..", "..",
					    ".",	   "./s1",  "sub//s1",	 "",	  "s1/"};
	char map[128], part[128];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(map, sizeof(map), "{\"a\":\"%s\"}", names[i]);
		snprintf(part, sizeof(part), "tensor 'a' is in shard '%s': not a plain path inside the folder",
			 names[i]);
		expect_index_refused(map, IPCC_INVALID, part);
	}
}

Test(loader_checkpoint, a_missing_shard_is_named_with_a_tensor_of_it)
{
	expect_index_refused("{\"a\":\"s1\",\"c\":\"s9\"}", IPCC_INVALID,
			     "/s9: no such file; the index assigns tensor 'c' to this shard");
}

Test(loader_checkpoint, a_tensor_missing_from_its_shard_is_named)
{
	expect_index_refused("{\"a\":\"s1\",\"c\":\"s1\"}", IPCC_INVALID,
			     "/s1: tensor 'c' is missing: the index assigns it to this shard");
}

Test(loader_checkpoint, a_tensor_that_the_index_does_not_know_is_named)
{
	expect_index_refused("{\"a\":\"both\"}", IPCC_INVALID,
			     "/both: tensor 'b' is in this shard, but not in the index");
}

Test(loader_checkpoint, a_tensor_in_the_wrong_shard_is_named)
{
	expect_index_refused("{\"a\":\"s2\",\"b\":\"s1\"}", IPCC_INVALID,
			     "/s1: tensor 'a' is in this shard, but the index assigns it to s2");
}

Test(loader_checkpoint, a_tensor_defined_twice_is_named_with_both_shards)
{
	expect_index_refused("{\"a\":\"s1\",\"b\":\"both\"}", IPCC_INVALID,
			     "/both: tensor 'a' is defined twice, in this shard and in s1");
}

Test(loader_checkpoint, a_bad_index_is_named_with_the_reason)
{
	struct files files;

	expect_index_refused("{}", IPCC_INVALID, "index.json: its weight_map is empty");
	expect_index_refused("[]", IPCC_INVALID, "index.json: no object 'weight_map'");
	expect_index_refused("{\"a\":1}", IPCC_INVALID, "index.json: the shard of tensor 'a' is not a string");
	expect_index_refused("{\"a\":\"s1\",\"a\":\"s2\"}", IPCC_INVALID, "duplicate object key near '\"a\"'");
	expect_index_refused("{", IPCC_INVALID, "index.json: invalid JSON at offset");
	expect_index_refused("{\"a\":\"x.bin\"}", IPCC_REFUSED, "x.bin: this is a PyTorch pickle");
	files_init(&files);
	files_write_text(&files, CHECKPOINT_INDEX, "");
	expect_refused(&files, NULL, IPCC_INVALID, "index.json: invalid JSON at offset 0");
	files_init(&files);
	files_write_text(&files, CHECKPOINT_INDEX, "");
	cr_assert_eq(truncate(files_path(&files, CHECKPOINT_INDEX), (64 << 20) + 1), 0);
	expect_refused(&files, NULL, IPCC_REFUSED, "an index of more than 67108864 is not read");
}

Test(loader_checkpoint, too_many_shards_are_refused)
{
	struct files files;
	char *text;
	size_t length;

	FILE *index = open_memstream(&text, &length);
	fputs("{\"weight_map\":{", index);
	for (unsigned i = 0; i <= CHECKPOINT_MAX_SHARDS; i++)
		fprintf(index, "%s\"t%u\":\"s%u\"", i > 0 ? "," : "", i, i);
	fputs("}}", index);
	fclose(index);
	files_init(&files);
	files_write(&files, CHECKPOINT_INDEX, text, length);
	free(text);
	expect_refused(&files, NULL, IPCC_REFUSED, "more than 4096 shards");
}

Test(loader_checkpoint, a_damaged_shard_is_named)
{
	struct files files;

	files_init(&files);
	files_write_tensors(&files, "s1", TENSOR_A, 3, 0);
	write_index(&files, "{\"a\":\"s1\"}");
	expect_refused(&files, NULL, IPCC_INVALID, "/s1: tensor 'a' ends at offset");
}

Test(loader_checkpoint, other_formats_are_named_by_their_file_names)
{
	static const struct {
		const char *file, *part;
	} cases[] = {
		{"pytorch_model.bin", "PyTorch pickle"},
		{"model.pt", "save_file"},
		{"model.pth", "weights_only=True"},
		{"v1.CKPT", "PyTorch pickle"},
		{"q4.gguf", "this is GGUF; only safetensors is loaded"},
		{"tf_model.h5", "from_tf=True"},
		{"model.onnx", "this is ONNX"},
		{"w.npz", "numpy.load"},
	};
	struct files files;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		files_init(&files);
		files_write_text(&files, "config.json", "{}");
		files_write_text(&files, cases[i].file, "?");
		expect_refused(&files, NULL, IPCC_REFUSED, cases[i].part);
		files_init(&files);
		files_write_text(&files, cases[i].file, "?");
		expect_refused(&files, cases[i].file, IPCC_REFUSED, cases[i].part);
	}
}

Test(loader_checkpoint, other_formats_are_named_by_their_contents)
{
	static const struct {
		const char *begin;
		size_t length;
		const char *part;
	} cases[] = {
		{"GGUF\x03\0\0\0\x10\0\0\0", 12, "this is GGUF"},
		{"PK\x03\x04\0\0\0\0\0\0", 10, "this is a zip archive"},
		{"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j", 11, "this is a PyTorch pickle"},
		{"\x80\x04\x95\0\0\0\0\0\0", 9, "this is a pickle"},
		{"\x89HDF\r\n\x1a\n\0\0", 10, "this is HDF5"},
		{"\x93NUMPY\x01\0v\0", 10, "this is NumPy arrays"},
		{"version https://git-lfs.github.com/spec/v1\noid sha256:0", 54, "git lfs pull"},
	};
	struct files files;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		files_init(&files);
		files_write(&files, "weights", cases[i].begin, cases[i].length);
		expect_refused(&files, "weights", IPCC_REFUSED, cases[i].part);
	}
}

Test(loader_checkpoint, a_header_whose_length_looks_like_a_pickle_is_accepted)
{
	char header[0x280 + 1];
	struct checkpoint cp;
	struct ipcc_error err = {0};
	struct files files;

	memset(header, ' ', sizeof(header));
	memcpy(header, "{}", 2);
	header[0x280] = '\0';
	files_init(&files);
	files_write_tensors(&files, "model.safetensors", header, 0, 0);
	cr_assert_eq(checkpoint_open(&cp, files.folder, &err), 0, "%s", err.message);
	checkpoint_fini(&cp);
	files_fini(&files);
}
