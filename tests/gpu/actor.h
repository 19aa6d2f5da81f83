/* Inside tests/gpu/actor*.c only: the parts that are played elsewhere than in actor.c, and what several parts need. */
#ifndef IPCC_TESTS_GPU_ACTOR_H
#define IPCC_TESTS_GPU_ACTOR_H

#include "tests/gpu/part.h"

/* Prints "NAME": {percentiles}, and `end`; sorts `ms`. */
void print_times(const char *name, double *ms, size_t count, const char *end);
/* A connection of its own, and the model attached and mapped over it. */
struct ipcc_model *attach_mapped(const char *name, struct ipcc_client **client);

/* actor_kept.c */
int act_legacy(int argc, char **argv);
int act_keep(int argc, char **argv);
int act_kept(int argc, char **argv);

#endif
