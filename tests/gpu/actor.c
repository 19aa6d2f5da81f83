/*
 * The parts in tests/gpu/run that are played by programs of their own: publishers, readers and offenders, on a real card or
 * on the fake driver. Prints one JSON object a line; exit status 0 when its part went as it should.
 *
 *	actor publish NAME DEVICE SEED SEGMENTS BYTES [wait]   publishes; with `wait` stays until it is killed
 *	actor compare NAME SEED SEGMENTS BYTES		       attaches, and compares every byte
 *	actor attach NAME ROUNDS			       times connect to mapped, and suspend and resume
 *	actor offend NAME				       writes to the read-only mapping with a kernel
 *	actor hold NAME SEED SEGMENTS BYTES		       attaches; compares again when a line comes on standard input
 *	actor churn NAME DEVICE ROUNDS BYTES		       publishes and evicts in a loop
 *	actor read NAMES PREFIX				       attaches to PREFIX0 ... in turn until standard input ends
 *	actor free					       free and total memory of the first GPU
 *	actor legacy TENSORS BYTES ROUNDS		       legacy IPC, a handle per tensor, between two processes
 *	actor keep NAME DEVICE SEED SEGMENTS BYTES	       publishes, and keeps until the broker wants it no longer
 *	actor kept NAME ROUNDS				       times connect to mapped of a kept model; then holds it until its
 *							       keeper ends
 */
#include "tests/gpu/actor.h"
#include "tests/gpu/raw.h"
#include "tests/gpu/weights.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

void print_times(const char *name, double *ms, size_t count, const char *end)
{
	qsort(ms, count, sizeof(*ms), ascending);
	printf("\"%s\": {\"p50\": %.3f, \"p99\": %.3f, \"min\": %.3f, \"max\": %.3f}%s", name, ms[count / 2],
	       ms[(count * 99 + 99) / 100 - 1], ms[0], ms[count - 1], end);
}

struct ipcc_model *attach_mapped(const char *name, struct ipcc_client **client)
{
	struct ipcc_error err;
	struct ipcc_model *model;
	*client = dial();
	must(ipcc_attach(*client, &(struct ipcc_attach_options){.model = name}, &model, &err), &err);
	must(ipcc_map(model, 0, &err), &err);
	return model;
}

static int act_publish(int argc, char **argv)
{
	struct ipcc_error err;
	struct weights w = {.name = argv[0],
			    .device = argv[1],
			    .seed = number(argv[2]),
			    .segments = (uint32_t)number(argv[3]),
			    .segment_bytes = number(argv[4]),
			    .tensors = 37};
	struct ipcc_client *client = dial();
	double start = now_ms();
	must(weights_publish(client, &w, NULL, &err), &err);
	printf("{\"published_ms\": %.1f, \"bytes\": %llu}\n", now_ms() - start,
	       (unsigned long long)(w.segments * w.segment_bytes));
	fflush(stdout);
	while (argc > 5)
		pause();
	ipcc_close(client);
	return 0;
}

static int act_compare(int argc, char **argv)
{
	struct ipcc_error err;
	struct weights w = {.name = argv[0],
			    .seed = number(argv[1]),
			    .segments = (uint32_t)number(argv[2]),
			    .segment_bytes = number(argv[3])};
	struct ipcc_client *client = dial();
	double start = now_ms();
	(void)argc;
	must(weights_compare(client, &w, &err), &err);
	printf("{\"compared_ms\": %.1f, \"bytes\": %llu}\n", now_ms() - start,
	       (unsigned long long)(w.segments * w.segment_bytes));
	ipcc_close(client);
	return 0;
}

static int act_attach(int argc, char **argv)
{
	size_t rounds = number(argv[1]);
	double *attach = calloc(rounds, sizeof(double)), *suspend = calloc(rounds, sizeof(double)),
	       *resume = calloc(rounds, sizeof(double)), *connect = calloc(rounds, sizeof(double)),
	       *map = calloc(rounds, sizeof(double));
	struct ipcc_error err;
	struct ipcc_model_facts facts = {0};
	(void)argc;
	raw_must(raw_load(), "cuInit");
	raw_context(0); /* as in an engine: the context is there */
	for (size_t i = 0; i < rounds; i++) {
		struct ipcc_model *model;
		double start = now_ms();
		struct ipcc_client *client = dial();
		must(ipcc_attach(client, &(struct ipcc_attach_options){.model = argv[0]}, &model, &err), &err);
		double attached = now_ms();
		must(ipcc_map(model, 0, &err), &err);
		double mapped = now_ms();
		void *before = ipcc_segment_address(model, 0);
		must(ipcc_suspend(model, &err), &err);
		double suspended = now_ms();
		must(ipcc_resume(model, &err), &err);
		double resumed = now_ms();
		if (ipcc_segment_address(model, 0) != before)
			return 1;
		connect[i] = attached - start;
		map[i] = mapped - attached;
		attach[i] = mapped - start;
		suspend[i] = suspended - mapped;
		resume[i] = resumed - suspended;
		ipcc_model_facts(model, &facts);
		ipcc_model_free(model);
		ipcc_close(client);
	}
	printf("{\"rounds\": %zu, \"segments\": %u, ", rounds, facts.segments);
	print_times("connect_attach_ms", connect, rounds, ", ");
	print_times("map_ms", map, rounds, ", ");
	print_times("connect_to_mapped_ms", attach, rounds, ", ");
	print_times("unmap_ms", suspend, rounds, ", ");
	print_times("remap_ms", resume, rounds, "}\n");
	return 0;
}

static int act_offend(int argc, char **argv)
{
	struct ipcc_client *client;
	(void)argc;
	raw_must(raw_load(), "cuInit");
	raw_context(0);
	struct ipcc_model *model = attach_mapped(argv[0], &client);
	cu_result stored = raw_store((cu_pointer)(uintptr_t)ipcc_segment_address(model, 0), 0xbad);
	printf("{\"kernel_store\": \"%s\"}\n", raw_error(stored));
	return stored == CU_ILLEGAL_ADDRESS ? 0 : 1;
}

static int act_hold(int argc, char **argv)
{
	struct ipcc_client *client;
	char line[64];
	raw_must(raw_load(), "cuInit");
	raw_context(0);
	struct ipcc_model *model = attach_mapped(argv[0], &client);
	printf("{\"holding\": true}\n");
	fflush(stdout);
	if (fgets(line, sizeof(line), stdin) == NULL)
		return 1;
	int status = act_compare(argc, argv);
	cu_result alive = cu.context_wait();
	ipcc_model_free(model);
	ipcc_close(client);
	return alive == CU_OK ? status : 1;
}

static int act_churn(int argc, char **argv)
{
	struct ipcc_error err;
	struct weights w = {
		.name = argv[0], .device = argv[1], .segments = 2, .segment_bytes = number(argv[3]), .tensors = 5};
	(void)argc;
	raw_must(raw_load(), "cuInit");
	raw_context(0); /* made once, not for every model */
	for (uint64_t i = 0; i < number(argv[2]); i++) {
		struct ipcc_client *client = dial();
		w.seed = i;
		must(weights_publish(client, &w, NULL, &err), &err);
		ipcc_close(client);
		client = dial();
		must(ipcc_evict(client, w.name, NULL, 0, IPCC_EVICT_FORCE, 0, NULL, &err), &err);
		ipcc_close(client);
	}
	printf("{\"rounds\": %s}\n", argv[2]);
	return 0;
}

static int act_read(int argc, char **argv)
{
	uint64_t attached = 0, missed = 0;
	struct pollfd input = {.fd = 0, .events = POLLIN};
	(void)argc;
	raw_must(raw_load(), "cuInit");
	raw_context(0);
	for (uint64_t i = 0; poll(&input, 1, 0) == 0; i++) {
		char name[64];
		struct ipcc_error err;
		struct ipcc_model *model;
		uint64_t words[64];
		struct ipcc_client *client = dial();
		snprintf(name, sizeof(name), "%s%llu", argv[1], (unsigned long long)(i % number(argv[0])));
		int rc = ipcc_attach(client, &(struct ipcc_attach_options){.model = name}, &model, &err);
		if (rc == IPCC_NOT_FOUND || rc == IPCC_BUSY) { /* just evicted, or not there yet */
			missed++;
			ipcc_close(client);
			continue;
		}
		must(rc, &err);
		must(ipcc_map(model, 0, &err), &err);
		must(ipcc_read(model, 0, 0, words, sizeof(words), &err), &err);
		ipcc_model_free(model);
		ipcc_close(client);
		attached++;
	}
	printf("{\"attached\": %llu, \"missed\": %llu}\n", (unsigned long long)attached, (unsigned long long)missed);
	return 0;
}

static int act_free(int argc, char **argv)
{
	size_t free_bytes, total;
	(void)argc, (void)argv;
	raw_must(raw_load(), "cuInit");
	raw_context(0);
	raw_must(cu.memory_info(&free_bytes, &total), "cuMemGetInfo");
	printf("{\"free\": %zu, \"total\": %zu}\n", free_bytes, total);
	return 0;
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{"publish", 5, act_publish}, {"compare", 4, act_compare}, {"attach", 2, act_attach},
		{"offend", 1, act_offend},   {"hold", 4, act_hold},	  {"churn", 4, act_churn},
		{"read", 2, act_read},	     {"free", 0, act_free},	  {"legacy", 3, act_legacy},
		{"keep", 5, act_keep},	     {"kept", 2, act_kept}};
	return part_play(parts, sizeof(parts) / sizeof(parts[0]), argc, argv);
}
