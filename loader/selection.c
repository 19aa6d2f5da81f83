/* See selection.h. A tensor is cut by its dense, row-by-row layout, so a share of rows is one piece and a share of columns
 * is a piece of every row. */
#include "loader/selection.h"

#include "loader/shown.h"
#include "manifest/bytes.h"
#include "manifest/dtype.h"
#include "manifest/fail.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum cut { CUT_NONE, CUT_ROWS, CUT_COLUMNS, CUT_BOTH };

static bool matches(const struct patterns *patterns, const char *name)
{
	for (uint32_t i = 0; i < patterns->count; i++) {
		if (fnmatch(patterns->texts[i], name, 0) == 0)
			return true;
	}
	return false;
}

static enum cut cut_of(const struct selection *s, const char *name)
{
	if (s->ranks <= 1)
		return CUT_NONE;
	return (matches(&s->rows, name) ? CUT_ROWS : CUT_NONE) | (matches(&s->columns, name) ? CUT_COLUMNS : CUT_NONE);
}

static int cut_tensor(const struct selection *s, const struct safetensors_tensor *t, enum cut cut,
		      struct selected *part, struct ipcc_error *err)
{
	uint64_t size = t->end - t->begin;

	if (cut == CUT_BOTH)
		return fail(err, IPCC_REFUSED, "tensor '%s' matches a pattern of rows and one of columns",
			    shown(t->name));
	if (t->rank == 0)
		return fail(err, IPCC_REFUSED, "tensor '%s' has no dimensions, so no part of it can be taken",
			    shown(t->name));
	uint64_t length = t->shape[cut == CUT_ROWS ? 0 : t->rank - 1];
	if (length % s->ranks != 0)
		return fail(err, IPCC_REFUSED, "tensor '%s': its %" PRIu64 " %s cannot be shared by %u ranks",
			    shown(t->name), length, cut == CUT_ROWS ? "rows" : "columns", s->ranks);
	uint64_t rows = 1;
	for (uint32_t i = 0; cut == CUT_COLUMNS && i + 1 < t->rank; i++)
		rows *= t->shape[i]; /* the header's check of the size has shown that this fits */
	uint64_t row = rows != 0 ? size / rows : 0;
	if (length / s->ranks * dtype_bits(t->dtype) % 8 != 0 && cut == CUT_COLUMNS)
		return fail(err, IPCC_REFUSED, "tensor '%s': a share of its columns ends inside a byte",
			    shown(t->name));
	if (row % s->ranks != 0)
		return fail(err, IPCC_REFUSED, "tensor '%s': a share of it ends inside a byte", shown(t->name));
	uint64_t share = row / s->ranks;
	*part = (struct selected){.skip = s->rank * share, .bytes = rows != 0 ? share : 0, .rows = rows, .stride = row};
	return 0;
}

int selection_take(const struct selection *s, const struct safetensors_tensor *t, bool *wanted, struct selected *part,
		   struct ipcc_error *err)
{
	bool taken = (s->include.count == 0 || matches(&s->include, t->name)) && !matches(&s->exclude, t->name);
	enum cut cut = taken ? cut_of(s, t->name) : CUT_NONE;

	if (cut != CUT_NONE) {
		int r = cut_tensor(s, t, cut, part, err);
		if (r != 0)
			return r;
	} else if (taken) {
		*part = (struct selected){.bytes = t->end - t->begin, .rows = 1};
	}
	*wanted = taken;
	return 0;
}

void selection_shape(const struct selection *s, const struct safetensors_tensor *t, uint64_t *shape)
{
	enum cut cut = cut_of(s, t->name);

	for (uint32_t i = 0; i < t->rank; i++)
		shape[i] = t->shape[i];
	if (cut == CUT_ROWS)
		shape[0] /= s->ranks;
	else if (cut == CUT_COLUMNS)
		shape[t->rank - 1] /= s->ranks;
}

bool selection_is_all(const struct selection *s)
{
	bool cuts = s->ranks > 1 && s->rows.count + s->columns.count > 0;
	return s->include.count == 0 && s->exclude.count == 0 && !cuts;
}

static void print_patterns(FILE *to, const char *what, const struct patterns *patterns)
{
	for (uint32_t i = 0; i < patterns->count; i++)
		fprintf(to, "%s=%s ", what, patterns->texts[i]);
}

char *selection_text(const struct selection *s)
{
	char *text = NULL;
	size_t length;
	FILE *to = open_memstream(&text, &length);

	if (to == NULL)
		return NULL;
	print_patterns(to, "include", &s->include);
	print_patterns(to, "exclude", &s->exclude);
	if (s->ranks > 1) {
		fprintf(to, "rank=%u/%u ", s->rank, s->ranks);
		print_patterns(to, "rows", &s->rows);
		print_patterns(to, "columns", &s->columns);
	}
	if (fclose(to) != 0) {
		free(text);
		return NULL;
	}
	if (length > 0)
		text[length - 1] = '\0';
	return text;
}
