/*
 * See safetensors.h. In steps: the text of the header, read whole; its members (header.c); their order and layout. Linear
 * but for two sorts.
 */
#include "loader/safetensors.h"

#include "loader/foreign.h"
#include "loader/header.h"
#include "loader/shown.h"
#include "manifest/bytes.h"
#include "manifest/fail.h"
#include "manifest/fd.h"
#include "manifest/format.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_OFFSET 8
#define METADATA      "__metadata__"

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
	if (prefix_bytes < HEADER_OFFSET || length > SAFETENSORS_MAX_HEADER_BYTES || prefix[HEADER_OFFSET] != '{') {
		const struct foreign *format = foreign_by_content(prefix, prefix_bytes);
		if (format != NULL)
			return foreign_refuse(format, st->path, err);
	}
	if (prefix_bytes < HEADER_OFFSET)
		return fail(err, IPCC_INVALID, "%s: %zu bytes are too few for a safetensors file", shown(st->path),
			    prefix_bytes);
	if (length > SAFETENSORS_MAX_HEADER_BYTES)
		return fail(err, IPCC_INVALID,
			    "%s: header length %" PRIu64 " at offset 0 exceeds %" PRIu64
			    "; no safetensors file, or damaged",
			    shown(st->path), length, SAFETENSORS_MAX_HEADER_BYTES);
	if (length > st->source.bytes - HEADER_OFFSET)
		return fail(err, IPCC_INVALID,
			    "%s: a header of %" PRIu64 " bytes at offset 8 in a file of %" PRIu64 " bytes: truncated",
			    shown(st->path), length, st->source.bytes);
	if (length == 0 || prefix[HEADER_OFFSET] != '{')
		return fail(err, IPCC_INVALID, "%s: no '{' at offset 8, where the header begins", shown(st->path));

	cleanup_free char *buffer = malloc(length + 1);
	if (buffer == NULL)
		return fail(err, IPCC_NO_MEMORY, "%s: no memory for a header of %" PRIu64 " bytes", shown(st->path),
			    length);
	r = fd_read_exact(fd, buffer, length, HEADER_OFFSET);
	if (r < 0)
		return read_failed(st, -r, length, HEADER_OFFSET, err);
	buffer[length] = '\0';
	st->data_begin = HEADER_OFFSET + length;
	*text = buffer;
	buffer = NULL;
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

/* Everything after the file is open; *st keeps what it was given on failure. */
static int read_header(struct safetensors *st, int fd, struct ipcc_error *err)
{
	cleanup_free char *text = NULL;

	int r = read_text(st, fd, &text, err);
	if (r == 0)
		r = header_parse(st, text, st->data_begin - HEADER_OFFSET, err);
	if (r != 0)
		return r;
	if (st->tensor_count > 1)
		qsort(st->tensors, st->tensor_count, sizeof(*st->tensors), compare_places);
	return check_layout(st, err);
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
