/* What the programs that play parts in tests/gpu/run and tests/gpu/two share: each ends with a message when its part fails. */
#ifndef IPCC_TESTS_GPU_PART_H
#define IPCC_TESTS_GPU_PART_H

#include "broker/client/ipc_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static inline void must(int rc, const struct ipcc_error *err)
{
	if (rc == IPCC_OK)
		return;
	fprintf(stderr, "%s\n", err->message);
	exit(1);
}

static inline struct ipcc_client *dial(void)
{
	struct ipcc_client *client;
	struct ipcc_error err;
	must(ipcc_connect(&client, &(struct ipcc_client_options){.timeout_ms = 60000}, &err), &err);
	return client;
}

static inline uint64_t number(const char *text)
{
	return strtoull(text, NULL, 0);
}

struct part {
	const char *name;
	int arguments; /* at least */
	int (*play)(int argc, char **argv);
};

/* Plays the part that argv[1] names; for main(). */
static inline int part_play(const struct part *parts, size_t count, int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < count; i++)
		if (strcmp(argv[1], parts[i].name) == 0 && argc - 2 >= parts[i].arguments)
			return parts[i].play(argc - 2, argv + 2);
	fprintf(stderr, "%s: see the top of its source for the parts it plays\n", argv[0]);
	return 2;
}

#endif
