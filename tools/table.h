/*
 * A table for people: rows are collected, then printed with columns as wide as their widest cell. Cells are escaped as
 * text.h says.
 */
#ifndef IPCC_TOOLS_TABLE_H
#define IPCC_TOOLS_TABLE_H

#include <stddef.h>

#define TABLE_MAX_COLUMNS 12

struct table {
	unsigned columns;
	const char *align; /* one character for each column: 'l' or 'r' */
	size_t cell_count;
	size_t capacity;
	char **cells; /* row by row, escaped */
};

/* `align` gives the number of columns too: "llr" has three. */
void table_init(struct table *t, const char *align);
void table_cell(struct table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A cell for each text, as for a row of headings. */
void table_row(struct table *t, const char *const *texts);
/* Prints all full rows and releases the table. */
void table_print(struct table *t);

#endif
