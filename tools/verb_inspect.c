/* ipc-cache inspect: a safetensors file or model folder, without a broker. The exit status is the verdict. */
#include "loader/checkpoint.h"
#include "tools/describe.h"
#include "tools/output.h"
#include "tools/table.h"
#include "tools/verb.h"

#include <stdlib.h>

enum { OPTION_TENSORS = 1 };

static const struct argp_option options[] = {
	{"tensors", OPTION_TENSORS, NULL, 0, "List the tensors too", 0},
	{0},
};

struct arguments {
	const char *path;
	bool tensors;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;
	(void)arg;
	switch (key) {
	case OPTION_TENSORS:
		a->tensors = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp argp = {
	.options = options,
	.parser = parse,
	.args_doc = "PATH",
	.doc = "Checks a safetensors file or a model folder as `load` would, and shows what it holds. The exit status "
	       "is "
	       "the verdict: 0 if it can be loaded, 5 if it is damaged or incomplete, 6 if its format is not loaded.",
};

static void print_tensors(const struct checkpoint *cp)
{
	struct table table;
	table_init(&table, "lllrl");
	table_row(&table, (const char *const[]){"TENSOR", "DTYPE", "SHAPE", "SIZE", "FILE"});
	for (uint32_t f = 0; f < cp->file_count; f++) {
		const struct safetensors *st = &cp->files[f].header;
		for (uint32_t i = 0; i < st->tensor_count; i++) {
			const struct safetensors_tensor *t = &st->tensors[i];
			char *shape = describe_shape(t->shape, t->rank);
			table_cell(&table, "%s", t->name);
			table_cell(&table, "%s", describe_dtype(t->dtype));
			table_cell(&table, "%s", shape);
			table_cell(&table, "%s", text_size(t->end - t->begin).text);
			table_cell(&table, "%s", cp->files[f].name);
			free(shape);
		}
	}
	table_print(&table);
}

static void print_checkpoint(const struct checkpoint *cp, bool tensors)
{
	fact("path", "%s", cp->root);
	for (uint32_t f = 0; f < cp->file_count; f++) {
		const struct safetensors *st = &cp->files[f].header;
		fact(f == 0 ? "files" : "", "%s  %s  %u tensors", cp->files[f].name, text_bytes(st->source.bytes).text,
		     st->tensor_count);
		for (uint32_t i = 0; i < st->metadata_count; i++)
			fact("", "  %s=%s", st->metadata[i].name, st->metadata[i].value);
	}
	fact("tensors", "%u, %s", cp->tensor_count, text_bytes(cp->tensor_bytes).text);
	if (tensors)
		print_tensors(cp);
}

static json_t *file_json(const struct checkpoint_file *file)
{
	json_t *metadata = checked(json_object());
	for (uint32_t i = 0; i < file->header.metadata_count; i++)
		json_object_set_new(metadata, file->header.metadata[i].name, json_text(file->header.metadata[i].value));
	return checked(json_pack("{s:o, s:o, s:o, s:o, s:o}", "name", json_text(file->name), "bytes",
				 json_number(file->header.source.bytes), "data_begin",
				 json_number(file->header.data_begin), "tensor_count",
				 json_number(file->header.tensor_count), "metadata", metadata));
}

static json_t *tensors_json(const struct checkpoint *cp)
{
	json_t *array = checked(json_array());
	for (uint32_t f = 0; f < cp->file_count; f++) {
		const struct safetensors *st = &cp->files[f].header;
		for (uint32_t i = 0; i < st->tensor_count; i++) {
			const struct safetensors_tensor *t = &st->tensors[i];
			json_array_append_new(
				array, checked(json_pack("{s:o, s:s, s:o, s:o, s:o, s:o}", "name", json_text(t->name),
							 "dtype", describe_dtype(t->dtype), "shape",
							 describe_numbers(t->shape, t->rank), "file",
							 json_text(cp->files[f].name), "offset", json_number(t->begin),
							 "bytes", json_number(t->end - t->begin))));
		}
	}
	return array;
}

static void print_checkpoint_json(const struct checkpoint *cp, bool tensors)
{
	json_t *files = checked(json_array());
	for (uint32_t f = 0; f < cp->file_count; f++)
		json_array_append_new(files, file_json(&cp->files[f]));
	json_t *document =
		json_pack("{s:o, s:b, s:o, s:o, s:o, s:o}", "path", json_text(cp->root), "indexed", cp->indexed,
			  "bytes", json_number(cp->file_bytes), "tensor_count", json_number(cp->tensor_count),
			  "tensor_bytes", json_number(cp->tensor_bytes), "files", files);
	if (tensors)
		json_object_set_new(checked(document), "tensors", tensors_json(cp));
	print_json(document);
}

int verb_inspect(struct common *common, int argc, char **argv)
{
	struct arguments a = {0};
	parse_arguments(&argp, &a, &(struct argument){&a.path, "which file or folder?"}, common, 0, argc, argv);
	struct checkpoint cp;
	struct ipcc_error err;
	if (checkpoint_open(&cp, a.path, &err))
		return report(common, &err);
	if (common->json)
		print_checkpoint_json(&cp, a.tensors);
	else
		print_checkpoint(&cp, a.tensors);
	checkpoint_fini(&cp);
	return IPCC_OK;
}
