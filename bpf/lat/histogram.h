/* Durations, counted in buckets that are at most 1/32 wide: percentiles are within 1.6 %; count, sum, least and most are exact. */
#ifndef LAT_HISTOGRAM_H
#define LAT_HISTOGRAM_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

#define HISTOGRAM_BUCKETS (60 * 32)

struct histogram {
	uint64_t count, sum_ns, least_ns, most_ns;
	uint64_t buckets[HISTOGRAM_BUCKETS];
};

void histogram_add(struct histogram *h, uint64_t ns);
/* By nearest rank; 0 when it is empty. */
uint64_t histogram_percentile(const struct histogram *h, unsigned percent);
/* {count, sum, p50, p90, p99, min, max} in microseconds, and with `buckets` those that are not empty: [from, count]. */
json_t *histogram_json(const struct histogram *h, int buckets);
/* One bar for each power of two. */
void histogram_print(const struct histogram *h, FILE *to);

#endif
