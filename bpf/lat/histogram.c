/* See histogram.h. Below 64 ns a bucket is a value; above, each power of two has 32. */
#include "bpf/lat/histogram.h"

#include "bpf/lat/lat.h"

#include <inttypes.h>
#include <string.h>

#define PART_BITS 5
#define BAR_CHARS 40

static unsigned bucket_of(uint64_t ns)
{
	if (ns < 2u << PART_BITS)
		return (unsigned)ns;
	unsigned shift = 63u - (unsigned)__builtin_clzll(ns) - PART_BITS;
	return (shift << PART_BITS) + (unsigned)(ns >> shift);
}

static uint64_t bucket_begin(unsigned bucket)
{
	if (bucket < 2u << PART_BITS)
		return bucket;
	unsigned shift = (bucket >> PART_BITS) - 1;
	return (uint64_t)(bucket - (shift << PART_BITS)) << shift;
}

void histogram_add(struct histogram *h, uint64_t ns)
{
	h->least_ns = h->count == 0 || ns < h->least_ns ? ns : h->least_ns;
	h->most_ns = ns > h->most_ns ? ns : h->most_ns;
	h->count++;
	h->sum_ns += ns;
	h->buckets[bucket_of(ns)]++;
}

uint64_t histogram_percentile(const struct histogram *h, unsigned percent)
{
	uint64_t rank = (h->count * percent + 99) / 100, seen = 0;
	for (unsigned i = 0; i < HISTOGRAM_BUCKETS && rank > 0; i++) {
		seen += h->buckets[i];
		if (seen < rank)
			continue;
		uint64_t middle = (bucket_begin(i) + bucket_begin(i + 1)) / 2;
		return middle < h->least_ns ? h->least_ns : middle > h->most_ns ? h->most_ns : middle;
	}
	return 0;
}

static double us(uint64_t ns)
{
	return (double)ns / 1000;
}

json_t *histogram_json(const struct histogram *h, int buckets)
{
	json_t *object = lat_checked(json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "count", (json_int_t)h->count,
					       "sum", us(h->sum_ns), "p50", us(histogram_percentile(h, 50)), "p90",
					       us(histogram_percentile(h, 90)), "p99", us(histogram_percentile(h, 99)),
					       "min", us(h->least_ns), "max", us(h->most_ns)));
	if (!buckets)
		return object;
	json_t *list = lat_checked(json_array());
	for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
		if (h->buckets[i] > 0)
			json_array_append_new(
				list, lat_checked(json_pack("[f, I]", us(bucket_begin(i)), (json_int_t)h->buckets[i])));
	json_object_set_new(object, "buckets", list);
	return object;
}

void histogram_print(const struct histogram *h, FILE *to)
{
	uint64_t powers[64] = {0}, most = 0;
	unsigned first = 63, last = 0;
	for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
		uint64_t begin = bucket_begin(i);
		unsigned power = begin == 0 ? 0 : 63u - (unsigned)__builtin_clzll(begin);
		if (h->buckets[i] == 0)
			continue;
		powers[power] += h->buckets[i];
		first = power < first ? power : first;
		last = power > last ? power : last;
	}
	for (unsigned i = first; i <= last; i++)
		most = powers[i] > most ? powers[i] : most;
	for (unsigned i = first; i <= last && most > 0; i++) {
		char bar[BAR_CHARS + 1] = "";
		memset(bar, '@', powers[i] * BAR_CHARS / most);
		fprintf(to, "  %12.3f us %10" PRIu64 " |%-*s|\n", us(1ull << i), powers[i], BAR_CHARS, bar);
	}
}
