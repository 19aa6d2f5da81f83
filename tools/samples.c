/* Durations and their percentiles; see samples.h. */
#include "tools/samples.h"

#include "tools/text.h"

#include <stdlib.h>

void samples_init(struct samples *s, size_t capacity)
{
	s->ns = checked(calloc(capacity, sizeof(*s->ns)));
	s->count = 0;
}

void samples_fini(struct samples *s)
{
	free(s->ns);
}

void samples_add(struct samples *s, uint64_t ns)
{
	s->ns[s->count++] = ns;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static double rank_us(const struct samples *s, unsigned percent)
{
	size_t rank = (s->count * percent + 99) / 100;
	return (double)s->ns[rank - 1] / 1000;
}

struct percentiles samples_percentiles(struct samples *s)
{
	qsort(s->ns, s->count, sizeof(*s->ns), compare);
	return (struct percentiles){.p50 = rank_us(s, 50),
				    .p90 = rank_us(s, 90),
				    .p99 = rank_us(s, 99),
				    .min = (double)s->ns[0] / 1000,
				    .max = rank_us(s, 100)};
}

json_t *percentiles_json(const struct percentiles *p)
{
	return checked(json_pack("{s:f, s:f, s:f, s:f, s:f}", "p50", p->p50, "p90", p->p90, "p99", p->p99, "min",
				 p->min, "max", p->max));
}
