/*
 * See safetensors.h. In steps: the text of the header; JSON (json.c); what JSON hides (duplicates.c); its members into
 * flat arrays; their order and layout. Linear but for one sort.
 */
#include "loader/safetensors.h"

#include "loader/duplicates.h"
#include "loader/foreign.h"
#include "loader/json.h"
#include "loader/shown.h"
#include "manifest/bytes.h"
#include "manifest/dtype.h"
#include "manifest/fail.h"
#include "manifest/fd.h"
#include "manifest/format.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES 8
#define METADATA     "__metadata__"

_Static_assert(SAFETENSORS_MAX_TENSORS == MANIFEST_MAX_BYTES / sizeof(struct manifest_tensor),
	       "what a manifest can hold");

void safetensors_fini(struct safetensors *st)
{
	free(st->path);
	free(st->tensors);
	free(st->metadata);
	free(st->text);
	free(st->shapes);
	*st = (struct safetensors){0};
}

static int read_failed(const struct safetensors *st, int error, uint64_t bytes, uint64_t offset, struct ipcc_error *err)
{
	if (error == ENODATA)
		return fail(err, IPCC_INVALID, "%s: changed while being read: it ends before offset %" PRIu64 " now",
			    shown(st->path), offset + bytes);
	return fail_errno(err, error, "%s: reading %" PRIu64 " bytes at offset %" PRIu64, shown(st->path), bytes,
			  offset);
}

/* The header's text, NUL-terminated, in *text; its length goes into st->data_begin. */
static int read_text(struct safetensors *st, int fd, char **text, struct ipcc_error *err)
{
	uint8_t prefix[FOREIGN_MAGIC_BYTES] = {0};
	size_t prefix_bytes = st->source.bytes < sizeof(prefix) ? st->source.bytes : sizeof(prefix);
	le64 stored;

	int r = fd_read_exact(fd, prefix, prefix_bytes, 0);
	if (r < 0)
		return read_failed(st, -r, prefix_bytes, 0, err);
	memcpy(&stored, prefix, sizeof(stored));
	uint64_t length = le64_get(stored);
	if (prefix_bytes < LENGTH_BYTES || length > SAFETENSORS_MAX_HEADER_BYTES || prefix[LENGTH_BYTES] != '{') {
		const struct foreign *format = foreign_by_content(prefix, prefix_bytes);
		if (format != NULL)
			return foreign_refuse(format, st->path, err);
	}
	if (prefix_bytes < LENGTH_BYTES)
		return fail(err, IPCC_INVALID, "%s: %zu bytes are too few for a safetensors file", shown(st->path),
			    prefix_bytes);
	if (length > SAFETENSORS_MAX_HEADER_BYTES)
		return fail(err, IPCC_INVALID,
			    "%s: header length %" PRIu64 " at offset 0 exceeds %" PRIu64
			    "; no safetensors file, or damaged",
			    shown(st->path), length, SAFETENSORS_MAX_HEADER_BYTES);
	if (length > st->source.bytes - LENGTH_BYTES)
		return fail(err, IPCC_INVALID,
			    "%s: a header of %" PRIu64 " bytes at offset 8 in a file of %" PRIu64 " bytes: truncated",
			    shown(st->path), length, st->source.bytes);
	if (length == 0 || prefix[LENGTH_BYTES] != '{')
		return fail(err, IPCC_INVALID, "%s: no '{' at offset 8, where the header begins", shown(st->path));

	cleanup_free char *buffer = malloc(length + 1);
	if (buffer == NULL)
		return fail(err, IPCC_NO_MEMORY, "%s: no memory for a header of %" PRIu64 " bytes", shown(st->path),
			    length);
	r = fd_read_exact(fd, buffer, length, LENGTH_BYTES);
	if (r < 0)
		return read_failed(st, -r, length, LENGTH_BYTES, err);
	buffer[length] = '\0';
	st->data_begin = LENGTH_BYTES + length;
	*text = buffer;
	buffer = NULL;
	return 0;
}

/* Allocates the arrays of *st, large enough for everything in `root`; the counts stay 0. */
static int make_room(struct safetensors *st, json_t *root, struct ipcc_error *err)
{
	const json_t *metadata = json_object_get(root, METADATA);
	size_t tensors = json_object_size(root), pairs = json_object_size(metadata), text = 0, sizes = 0;
	const char *name;
	json_t *value;

	if (tensors > SAFETENSORS_MAX_TENSORS)
		return fail(err, IPCC_REFUSED, "%s: more than %d tensors", shown(st->path), SAFETENSORS_MAX_TENSORS);
	json_object_foreach(root, name, value)
	{
		text += strlen(name) + 1;
		sizes += json_array_size(json_object_get(value, "shape"));
	}
	json_object_foreach((json_t *)metadata, name, value) text += strlen(name) + json_string_length(value) + 2;
	/* One more of each: malloc(0) may be NULL. */
	st->tensors = calloc(tensors + 1, sizeof(*st->tensors));
	st->metadata = calloc(pairs + 1, sizeof(*st->metadata));
	st->text = malloc(text + 1);
	st->shapes = calloc(sizes + 1, sizeof(*st->shapes));
	if (st->tensors == NULL || st->metadata == NULL || st->text == NULL || st->shapes == NULL)
		return fail(err, IPCC_NO_MEMORY, "%s: no memory for %zu tensors", shown(st->path), tensors);
	return 0;
}

/* Copies a string to *at and moves that on. */
static const char *keep(char **at, const char *string)
{
	size_t bytes = strlen(string) + 1;
	char *kept = memcpy(*at, string, bytes);

	*at += bytes;
	return kept;
}

static int take_metadata(struct safetensors *st, json_t *metadata, char **text, struct ipcc_error *err)
{
	const char *name;
	json_t *value;

	if (json_is_null(metadata))
		return 0;
	if (!json_is_object(metadata))
		return fail(err, IPCC_INVALID, "%s: " METADATA " is not an object", shown(st->path));
	json_object_foreach(metadata, name, value)
	{
		if (!json_is_string(value))
			return fail(err, IPCC_INVALID, "%s: '%s' in " METADATA " is not a string", shown(st->path),
				    shown(name));
		struct safetensors_pair *pair = &st->metadata[st->metadata_count++];
		pair->name = keep(text, name);
		pair->value = keep(text, json_string_value(value));
	}
	return 0;
}

/* An array of integers that are not negative; `what` names it. */
static int take_integers(const char *path, const char *tensor, const char *what, const json_t *array, uint64_t *to,
			 struct ipcc_error *err)
{
	if (!json_is_array(array))
		return fail(err, IPCC_INVALID, "%s: tensor '%s': %s is %s", shown(path), shown(tensor), what,
			    array == NULL ? "missing" : "not an array");
	for (size_t i = 0; i < json_array_size(array); i++) {
		const json_t *value = json_array_get(array, i);
		if (!json_is_integer(value) || json_integer_value(value) < 0)
			return fail(err, IPCC_INVALID, "%s: tensor '%s': %s[%zu] is not a whole number from 0 on",
				    shown(path), shown(tensor), what, i);
		to[i] = (uint64_t)json_integer_value(value);
	}
	return 0;
}

static int take_tensor(struct safetensors *st, const char *name, const json_t *value, char **text, uint64_t **shapes,
		       struct ipcc_error *err)
{
	struct safetensors_tensor *tensor = &st->tensors[st->tensor_count];
	const json_t *dtype = json_object_get(value, "dtype");
	const json_t *shape = json_object_get(value, "shape");
	const json_t *offsets = json_object_get(value, "data_offsets");
	uint64_t range[2], dense;

	if (!json_is_object(value))
		return fail(err, IPCC_INVALID, "%s: tensor '%s' is not an object", shown(st->path), shown(name));
	if (!json_is_string(dtype))
		return fail(err, IPCC_INVALID, "%s: tensor '%s': dtype is %s", shown(st->path), shown(name),
			    dtype == NULL ? "missing" : "not a string");
	tensor->dtype = dtype_from_name(json_string_value(dtype));
	if (tensor->dtype == 0)
		return fail(err, IPCC_INVALID, "%s: tensor '%s': unknown dtype '%s'", shown(st->path), shown(name),
			    shown(json_string_value(dtype)));
	int r = take_integers(st->path, name, "shape", shape, *shapes, err);
	if (r != 0)
		return r;
	if (json_is_array(offsets) && json_array_size(offsets) != 2)
		return fail(err, IPCC_INVALID, "%s: tensor '%s': data_offsets has %zu numbers, not 2", shown(st->path),
			    shown(name), json_array_size(offsets));
	r = take_integers(st->path, name, "data_offsets", offsets, range, err);
	if (r != 0)
		return r;
	tensor->rank = (uint32_t)json_array_size(shape);
	tensor->shape = *shapes;
	if (!dtype_dense_bytes(tensor->dtype, tensor->shape, tensor->rank, &dense))
		return fail(err, IPCC_INVALID,
			    "%s: tensor '%s': its shape overflows, or does not fill whole bytes of %s", shown(st->path),
			    shown(name), dtype_name(tensor->dtype));
	if (range[1] < range[0] || range[1] - range[0] != dense)
		return fail(err, IPCC_INVALID,
			    "%s: tensor '%s': data_offsets [%" PRIu64 ", %" PRIu64
			    "], but shape and dtype need %" PRIu64 " bytes",
			    shown(st->path), shown(name), range[0], range[1], dense);
	*shapes += tensor->rank;
	tensor->name = keep(text, name);
	/* Below 2^63 and 2^27: no overflow. */
	tensor->begin = st->data_begin + range[0];
	tensor->end = st->data_begin + range[1];
	st->tensor_count++;
	return 0;
}

static int compare_places(const void *a, const void *b)
{
	const struct safetensors_tensor *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	if (x->end != y->end)
		return x->end < y->end ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* The tensors cover the data exactly. */
static int check_layout(const struct safetensors *st, struct ipcc_error *err)
{
	uint64_t at = st->data_begin;

	for (uint32_t i = 0; i < st->tensor_count; i++) {
		const struct safetensors_tensor *tensor = &st->tensors[i];
		if (tensor->begin > at)
			return fail(err, IPCC_INVALID,
				    "%s: tensor '%s' begins at offset %" PRIu64 ", leaving a hole of %" PRIu64
				    " bytes at offset %" PRIu64,
				    shown(st->path), shown(tensor->name), tensor->begin, tensor->begin - at, at);
		if (tensor->begin < at)
			return fail(err, IPCC_INVALID,
				    "%s: tensor '%s' at offset %" PRIu64
				    " overlaps tensor '%s', which ends at %" PRIu64,
				    shown(st->path), shown(tensor->name), tensor->begin, shown(tensor[-1].name), at);
		at = tensor->end;
	}
	if (at > st->source.bytes)
		return fail(err, IPCC_INVALID,
			    "%s: tensor '%s' ends at offset %" PRIu64 ", but the file has %" PRIu64 " bytes: truncated",
			    shown(st->path), shown(st->tensors[st->tensor_count - 1].name), at, st->source.bytes);
	if (at < st->source.bytes)
		return fail(err, IPCC_INVALID, "%s: %" PRIu64 " bytes at offset %" PRIu64 " belong to no tensor",
			    shown(st->path), st->source.bytes - at, at);
	return 0;
}

static int take_members(struct safetensors *st, json_t *root, struct ipcc_error *err)
{
	const char *name;
	json_t *value;

	int r = make_room(st, root, err);
	if (r != 0)
		return r;
	char *text = st->text;
	uint64_t *shapes = st->shapes;
	json_object_foreach(root, name, value)
	{
		if (strcmp(name, METADATA) == 0)
			r = take_metadata(st, value, &text, err);
		else
			r = take_tensor(st, name, value, &text, &shapes, err);
		if (r != 0)
			return r;
	}
	if (st->tensor_count > 1)
		qsort(st->tensors, st->tensor_count, sizeof(*st->tensors), compare_places);
	return check_layout(st, err);
}

/* Everything after the file is open; *st keeps what it was given on failure. */
static int read_header(struct safetensors *st, int fd, struct ipcc_error *err)
{
	cleanup_free char *text = NULL;
	json_t *root;

	int r = read_text(st, fd, &text, err);
	if (r != 0)
		return r;
	size_t length = st->data_begin - LENGTH_BYTES;
	r = json_read(text, length, 0, st->path, LENGTH_BYTES, &root, err);
	if (r != 0)
		return r;
	/* Begins with a brace and is valid, hence an object. */
	r = duplicates_check(text, length, root, st->path, err);
	if (r == 0)
		r = take_members(st, root, err);
	json_decref(root);
	return r;
}

int safetensors_read(struct safetensors *st, int dirfd, const char *name, const char *path, struct ipcc_error *err)
{
	struct safetensors found = {0};
	cleanup_fd int fd = -1;

	found.path = strdup(path);
	if (found.path == NULL)
		return fail(err, IPCC_NO_MEMORY, "%s: no memory", shown(path));
	int r = source_open(dirfd, name, path, &fd, &found.source, err);
	if (r == 0)
		r = read_header(&found, fd, err);
	if (r != 0) {
		safetensors_fini(&found);
		return r;
	}
	*st = found;
	return 0;
}
