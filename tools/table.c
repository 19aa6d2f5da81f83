/* A table for people; see table.h. */
#include "tools/table.h"

#include "tools/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void table_init(struct table *t, const char *align)
{
	*t = (struct table){.columns = (unsigned)strlen(align), .align = align};
}

void table_cell(struct table *t, const char *format, ...)
{
	if (t->cell_count == t->capacity) {
		t->capacity = t->capacity == 0 ? 64 : 2 * t->capacity;
		t->cells = checked(reallocarray(t->cells, t->capacity, sizeof(*t->cells)));
	}
	va_list args;
	va_start(args, format);
	char *text = format_text_args(format, args);
	va_end(args);
	t->cells[t->cell_count++] = escape(text);
	free(text);
}

void table_row(struct table *t, const char *const *texts)
{
	for (unsigned i = 0; i < t->columns; i++)
		table_cell(t, "%s", texts[i]);
}

static void print_row(const struct table *t, char *const *cells, const size_t *widths)
{
	/* No blanks at the end of a line. */
	unsigned last = t->columns - 1;
	while (last > 0 && cells[last][0] == '\0')
		last--;
	for (unsigned i = 0; i <= last; i++) {
		int padding = (int)(widths[i] - text_columns(cells[i]));
		if (t->align[i] == 'r')
			printf("%*s%s", padding, "", cells[i]);
		else
			printf("%s%*s", cells[i], i == last ? 0 : padding, "");
		fputs(i == last ? "\n" : "  ", stdout);
	}
}

void table_print(struct table *t)
{
	size_t widths[TABLE_MAX_COLUMNS] = {0};
	for (size_t i = 0; i < t->cell_count; i++) {
		size_t columns = text_columns(t->cells[i]);
		if (columns > widths[i % t->columns])
			widths[i % t->columns] = columns;
	}
	for (size_t i = 0; i + t->columns <= t->cell_count; i += t->columns)
		print_row(t, t->cells + i, widths);
	for (size_t i = 0; i < t->cell_count; i++)
		free(t->cells[i]);
	free(t->cells);
}
