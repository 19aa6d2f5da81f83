/*
 * See header.h. The header is taken apart into its members (members.h). A tensor in the form that all writers give it is
 * taken as it stands, which is five times as fast; each other member jansson parses by itself. What jansson does not show (a
 * member given twice, the sign of -0) is looked up in the member's text.
 *
 * Duplicates matter where they would be ambiguous: names of tensors, __metadata__ itself, and dtype, shape and
 * data_offsets of one tensor. Elsewhere (inside __metadata__, unknown members) the last one counts.
 */
#include "loader/header.h"

#include "loader/json.h"
#include "loader/members.h"
#include "loader/shown.h"
#include "manifest/bytes.h"
#include "manifest/dtype.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "__metadata__"
/* Of the form that is taken as it stands. */
#define PLAIN_RANK 8

/* One parse. */
struct parse {
	struct safetensors *st;
	const char *begin;   /* of the text */
	char *free_text;     /* in st->text: as large as the header, and no string is longer than its JSON */
	size_t tensors_room; /* of st->tensors, in entries */
	size_t shapes_count; /* of st->shapes */
	size_t shapes_room;
	bool has_metadata;
	struct ipcc_error *err;
};

static int no_memory(const struct parse *p)
{
	return fail(p->err, IPCC_NO_MEMORY, "%s: no memory to parse the header", shown(p->st->path));
}

static int parse_piece(const struct parse *p, struct piece piece, json_t **value)
{
	uint64_t offset = HEADER_OFFSET + (uint64_t)(piece.at - p->begin);
	return json_read(piece.at, piece.length, JSON_DECODE_ANY, p->st->path, offset, value, p->err);
}

static const char *keep(struct parse *p, const char *string)
{
	size_t bytes = strlen(string) + 1;
	char *kept = memcpy(p->free_text, string, bytes);

	p->free_text += bytes;
	return kept;
}

/* Doubles *array until `needed` entries fit. */
static bool grow(void **array, size_t *room, size_t needed, size_t entry_bytes)
{
	size_t larger = *room != 0 ? *room : 64;

	while (larger < needed)
		larger *= 2;
	if (larger == *room)
		return true;
	void *grown = realloc(*array, larger * entry_bytes);
	if (grown == NULL)
		return false;
	*array = grown;
	*room = larger;
	return true;
}

static int take_metadata(struct parse *p, json_t *metadata)
{
	struct safetensors *st = p->st;
	const char *name;
	json_t *value;

	if (p->has_metadata)
		return fail(p->err, IPCC_INVALID, "%s: '" METADATA "' is there twice in the header", shown(st->path));
	p->has_metadata = true;
	if (json_is_null(metadata))
		return 0;
	if (!json_is_object(metadata))
		return fail(p->err, IPCC_INVALID, "%s: " METADATA " is not an object", shown(st->path));
	st->metadata = calloc(json_object_size(metadata) + 1, sizeof(*st->metadata));
	if (st->metadata == NULL)
		return no_memory(p);
	json_object_foreach(metadata, name, value)
	{
		if (!json_is_string(value))
			return fail(p->err, IPCC_INVALID, "%s: '%s' in " METADATA " is not a string", shown(st->path),
				    shown(name));
		struct safetensors_pair *pair = &st->metadata[st->metadata_count++];
		pair->name = keep(p, name);
		pair->value = keep(p, json_string_value(value));
	}
	return 0;
}

static int fail_tensor(const struct parse *p, const char *tensor, const char *what, const char *reason)
{
	return fail(p->err, IPCC_INVALID, "%s: tensor '%s': %s %s", shown(p->st->path), shown(tensor), what, reason);
}

/* What jansson's view of the tensor hides. `text` is valid. */
static int check_text(const struct parse *p, const char *tensor, struct piece text)
{
	static const char *const known[] = {"dtype", "shape", "data_offsets"};
	struct members members = members_of(text.at, text.length);
	struct piece name, value;
	unsigned seen = 0;

	while (members_next(&members, &name, &value) == 1) {
		for (size_t i = 0; i < array_length(known); i++) {
			if (!piece_is(name, known[i]))
				continue;
			if (seen & (1u << i))
				return fail_tensor(p, tensor, known[i], "is there twice");
			if (i > 0 && piece_has_negative_number(value))
				return fail_tensor(p, tensor, known[i], "has a negative number");
			seen |= 1u << i;
			break;
		}
	}
	return 0;
}

/* An array of whole numbers that are not negative; `what` names it. */
static int take_integers(const struct parse *p, const char *tensor, const char *what, const json_t *array, uint64_t *to)
{
	for (size_t i = 0; i < json_array_size(array); i++) {
		const json_t *value = json_array_get(array, i);
		if (!json_is_integer(value) || json_integer_value(value) < 0)
			return fail(p->err, IPCC_INVALID, "%s: tensor '%s': %s[%zu] is not a whole number from 0 on",
				    shown(p->st->path), shown(tensor), what, i);
		to[i] = (uint64_t)json_integer_value(value);
	}
	return 0;
}

static int take_dtype(const struct parse *p, const char *name, const json_t *dtype, uint32_t *to)
{
	if (!json_is_string(dtype))
		return fail_tensor(p, name, "dtype", dtype == NULL ? "is missing" : "is not a string");
	*to = dtype_from_name(json_string_value(dtype));
	if (*to == 0)
		return fail(p->err, IPCC_INVALID, "%s: tensor '%s': unknown dtype '%s'", shown(p->st->path),
			    shown(name), shown(json_string_value(dtype)));
	return 0;
}

/* Appends to st->shapes; the tensor's pointer is set when that no longer moves. */
static int take_shape(struct parse *p, const char *name, const json_t *shape, uint32_t *rank)
{
	struct safetensors *st = p->st;

	if (!json_is_array(shape))
		return fail_tensor(p, name, "shape", shape == NULL ? "is missing" : "is not an array");
	if (!grow((void **)&st->shapes, &p->shapes_room, p->shapes_count + json_array_size(shape) + 1,
		  sizeof(*st->shapes)))
		return no_memory(p);
	*rank = (uint32_t)json_array_size(shape);
	return take_integers(p, name, "shape", shape, st->shapes + p->shapes_count);
}

static int take_range(const struct parse *p, const char *name, const json_t *offsets, uint64_t range[2])
{
	if (!json_is_array(offsets))
		return fail_tensor(p, name, "data_offsets", offsets == NULL ? "is missing" : "is not an array");
	if (json_array_size(offsets) != 2)
		return fail(p->err, IPCC_INVALID, "%s: tensor '%s': data_offsets has %zu numbers, not 2",
			    shown(p->st->path), shown(name), json_array_size(offsets));
	return take_integers(p, name, "data_offsets", offsets, range);
}

/* Appends the tensor, whose shape is the last in st->shapes and not counted yet. */
static int add_tensor(struct parse *p, const char *name, uint32_t dtype, uint32_t rank, const uint64_t range[2])
{
	struct safetensors *st = p->st;
	uint64_t dense;

	if (!dtype_dense_bytes(dtype, st->shapes + p->shapes_count, rank, &dense))
		return fail(p->err, IPCC_INVALID,
			    "%s: tensor '%s': its shape overflows, or does not fill whole bytes of %s", shown(st->path),
			    shown(name), dtype_name(dtype));
	if (range[1] < range[0] || range[1] - range[0] != dense)
		return fail(p->err, IPCC_INVALID,
			    "%s: tensor '%s': data_offsets [%" PRIu64 ", %" PRIu64
			    "], but shape and dtype need %" PRIu64 " bytes",
			    shown(st->path), shown(name), range[0], range[1], dense);
	if (st->tensor_count == SAFETENSORS_MAX_TENSORS)
		return fail(p->err, IPCC_REFUSED, "%s: more than %d tensors", shown(st->path), SAFETENSORS_MAX_TENSORS);
	if (!grow((void **)&st->tensors, &p->tensors_room, (size_t)st->tensor_count + 1, sizeof(*st->tensors)))
		return no_memory(p);
	/* Below 2^63 and 2^27: no overflow. */
	st->tensors[st->tensor_count++] = (struct safetensors_tensor){.name = keep(p, name),
								      .dtype = dtype,
								      .rank = rank,
								      .begin = st->data_begin + range[0],
								      .end = st->data_begin + range[1]};
	p->shapes_count += rank;
	return 0;
}

static int take_tensor(struct parse *p, const char *name, const json_t *value, struct piece text)
{
	uint32_t dtype = 0, rank = 0;
	uint64_t range[2];

	if (!json_is_object(value))
		return fail(p->err, IPCC_INVALID, "%s: tensor '%s' is not an object", shown(p->st->path), shown(name));
	int r = check_text(p, name, text);
	if (r == 0)
		r = take_dtype(p, name, json_object_get(value, "dtype"), &dtype);
	if (r == 0)
		r = take_shape(p, name, json_object_get(value, "shape"), &rank);
	if (r == 0)
		r = take_range(p, name, json_object_get(value, "data_offsets"), range);
	return r != 0 ? r : add_tensor(p, name, dtype, rank, range);
}

/* A tensor of dtype, shape and data_offsets, once each and plain. False for every other member: it is parsed then. */
static bool read_plain(struct piece text, uint32_t *dtype, uint64_t *shape, int *rank, uint64_t range[2])
{
	struct members members = members_of(text.at, text.length);
	struct piece name, value;
	char dtype_text[16];
	int more, ranges = -1;

	*dtype = 0;
	*rank = -1;
	if (text.length == 0 || text.at[0] != '{')
		return false;
	while ((more = members_next(&members, &name, &value)) == 1) {
		if (!piece_is_plain_string(name))
			return false;
		if (*dtype == 0 && piece_is(name, "dtype")) {
			if (!piece_is_plain_string(value) || value.length - 2 >= sizeof(dtype_text))
				return false;
			memcpy(dtype_text, value.at + 1, value.length - 2);
			dtype_text[value.length - 2] = '\0';
			*dtype = dtype_from_name(dtype_text);
		} else if (*rank < 0 && piece_is(name, "shape")) {
			*rank = piece_plain_numbers(value, shape, PLAIN_RANK);
		} else if (ranges < 0 && piece_is(name, "data_offsets")) {
			ranges = piece_plain_numbers(value, range, 2);
		} else {
			return false;
		}
	}
	return more == 0 && members.at == members.end && *dtype != 0 && *rank >= 0 && ranges == 2;
}

/* 1: it was taken; 0: it is not plain; a code below zero, negated: it is plain and wrong. */
static int take_plain(struct parse *p, struct piece name, struct piece text)
{
	uint64_t shape[PLAIN_RANK], range[2];
	cleanup_free char *kept = NULL;
	uint32_t dtype;
	int rank;

	if (!piece_is_plain_string(name) || piece_is(name, METADATA) || !read_plain(text, &dtype, shape, &rank, range))
		return 0;
	if (!grow((void **)&p->st->shapes, &p->shapes_room, p->shapes_count + (size_t)rank + 1, sizeof(*shape)))
		return -no_memory(p);
	memcpy(p->st->shapes + p->shapes_count, shape, (size_t)rank * sizeof(*shape));
	kept = strndup(name.at + 1, name.length - 2);
	if (kept == NULL)
		return -no_memory(p);
	int r = add_tensor(p, kept, dtype, (uint32_t)rank, range);
	return r != 0 ? -r : 1;
}

static int take_member(struct parse *p, struct piece name, struct piece text)
{
	json_t *decoded = NULL, *value = NULL;

	int r = take_plain(p, name, text);
	if (r != 0)
		return r < 0 ? -r : 0;
	r = parse_piece(p, name, &decoded);
	if (r == 0)
		r = parse_piece(p, text, &value);
	if (r == 0 && strcmp(json_string_value(decoded), METADATA) == 0)
		r = take_metadata(p, value);
	else if (r == 0)
		r = take_tensor(p, json_string_value(decoded), value, text);
	json_decref(decoded);
	json_decref(value);
	return r;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_names(const struct parse *p)
{
	const struct safetensors *st = p->st;
	const char **names = malloc(((size_t)st->tensor_count + 1) * sizeof(*names));
	int r = 0;

	if (names == NULL)
		return no_memory(p);
	for (uint32_t i = 0; i < st->tensor_count; i++)
		names[i] = st->tensors[i].name;
	qsort(names, st->tensor_count, sizeof(*names), compare_names);
	for (uint32_t i = 1; r == 0 && i < st->tensor_count; i++) {
		if (strcmp(names[i - 1], names[i]) == 0)
			r = fail(p->err, IPCC_INVALID, "%s: tensor '%s' is there twice in the header", shown(st->path),
				 shown(names[i]));
	}
	free(names);
	return r;
}

/* Every array has its size now. */
static void set_shapes(struct safetensors *st)
{
	const uint64_t *shape = st->shapes;

	for (uint32_t i = 0; i < st->tensor_count; i++) {
		st->tensors[i].shape = shape;
		shape += st->tensors[i].rank;
	}
}

int header_parse(struct safetensors *st, const char *text, size_t length, struct ipcc_error *err)
{
	struct members members = members_of(text, length);
	struct parse p = {.st = st, .begin = text, .err = err};
	struct piece name, value;
	int more;

	st->text = malloc(length + 1);
	if (st->text == NULL)
		return no_memory(&p);
	p.free_text = st->text;
	while ((more = members_next(&members, &name, &value)) == 1) {
		int r = take_member(&p, name, value);
		if (r != 0)
			return r;
	}
	members.at += strspn(members.at, " \t\r\n");
	if (more < 0 || members.at != members.end)
		return fail(err, IPCC_INVALID, "%s: invalid JSON at offset %" PRIu64, shown(st->path),
			    HEADER_OFFSET + (uint64_t)(members.at - text));
	set_shapes(st);
	return check_names(&p);
}
