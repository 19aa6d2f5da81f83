/* Durations of a repeated step, and their percentiles. */
#ifndef IPCC_TOOLS_SAMPLES_H
#define IPCC_TOOLS_SAMPLES_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct samples {
	uint64_t *ns;
	size_t count;
};

/* The percentiles in microseconds, by nearest rank: what is given was measured. */
struct percentiles {
	double p50;
	double p90;
	double p99;
	double min;
	double max;
};

void samples_init(struct samples *s, size_t capacity);
void samples_fini(struct samples *s);
/* At most `capacity` times. */
void samples_add(struct samples *s, uint64_t ns);
/* Of at least one sample; sorts them. */
struct percentiles samples_percentiles(struct samples *s);
json_t *percentiles_json(const struct percentiles *p);

#endif
