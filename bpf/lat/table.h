/* Values by two numbers; over the C library's search trees. */
#ifndef LAT_TABLE_H
#define LAT_TABLE_H

#include <stdbool.h>
#include <stdint.h>

struct table {
	void *root;
	unsigned count, many; /* how many are so many that it is swept */
};

/* Has it grown to twice of what the last sweep left? */
bool table_is_large(struct table *table);

void *table_get(const struct table *table, uint64_t a, uint64_t b);
/* Replaces. The value is the caller's. */
void table_put(struct table *table, uint64_t a, uint64_t b, void *value);
/* Returns what was there, or NULL. */
void *table_take(struct table *table, uint64_t a, uint64_t b);
/* Takes all values for which `is_over` holds, and hands them to `end`, which may be NULL. */
void table_sweep(struct table *table, bool (*is_over)(const void *value), void (*end)(void *value));

#endif
