/* See table.h. */
#include "bpf/lat/table.h"

#include "bpf/lat/lat.h"

#include <search.h>
#include <stdlib.h>

struct item {
	uint64_t a, b;
	void *value;
};

static int compare(const void *left, const void *right)
{
	const struct item *x = left, *y = right;
	return x->a != y->a ? (x->a > y->a) - (x->a < y->a) : (x->b > y->b) - (x->b < y->b);
}

static struct item *find(const struct table *table, uint64_t a, uint64_t b)
{
	struct item key = {.a = a, .b = b};
	struct item **node = tfind(&key, &table->root, compare);
	return node != NULL ? *node : NULL;
}

void *table_get(const struct table *table, uint64_t a, uint64_t b)
{
	struct item *entry = find(table, a, b);
	return entry != NULL ? entry->value : NULL;
}

void table_put(struct table *table, uint64_t a, uint64_t b, void *value)
{
	struct item *entry = find(table, a, b);
	if (entry == NULL) {
		entry = lat_checked(malloc(sizeof(*entry)));
		*entry = (struct item){.a = a, .b = b};
		lat_checked(tsearch(entry, &table->root, compare));
		table->count++;
	}
	entry->value = value;
}

void *table_take(struct table *table, uint64_t a, uint64_t b)
{
	struct item *entry = find(table, a, b);
	if (entry == NULL)
		return NULL;
	void *value = entry->value;
	tdelete(entry, &table->root, compare);
	free(entry);
	table->count--;
	return value;
}

/* The least that is worth a sweep. */
#define MANY 4096

bool table_is_large(struct table *table)
{
	return table->count > (table->many > MANY ? table->many : MANY);
}

struct sweep {
	bool (*is_over)(const void *value);
	struct item **over;
	unsigned count;
};

static void visit(const void *node, VISIT when, void *closure)
{
	struct sweep *sweep = closure;
	struct item *entry = *(struct item *const *)node;
	if ((when == postorder || when == leaf) && sweep->is_over(entry->value))
		sweep->over[sweep->count++] = entry;
}

void table_sweep(struct table *table, bool (*is_over)(const void *value), void (*end)(void *value))
{
	struct sweep sweep = {.is_over = is_over, .over = lat_checked(calloc(table->count + 1, sizeof(void *)))};
	twalk_r(table->root, visit, &sweep);
	for (unsigned i = 0; i < sweep.count; i++) {
		void *value = table_take(table, sweep.over[i]->a, sweep.over[i]->b);
		if (end != NULL)
			end(value);
	}
	free(sweep.over);
	table->many = 2 * table->count;
}
