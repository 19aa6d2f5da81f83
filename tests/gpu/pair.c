/*
 * The parts in tests/gpu/two that are played by programs of their own, beside those of actor.c. Prints one JSON object a
 * line; exit status 0 when its part went as it should.
 *
 *	pair cards				    the GPUs that this process sees, in its order
 *	pair free				    and the free bytes of each
 *	pair shard NAME SEED SEGMENTS BYTES EVERY   attaches; whose memory it is; compares each EVERY-th block
 *	pair forge NAME CLAIMED REAL BYTES	    publishes memory of REAL as if it were CLAIMED's
 *	pair pace NAME [raw]			    attaches and maps at each time (CLOCK_MONOTONIC, ns) that comes on standard
 *						    input; raw: imports and maps, with the driver alone
 *	pair swap NAME DEVICE ROUNDS BYTES	    publishes one generation after the other in place of the last
 *	pair watch NAME...			    attaches to each in turn and hashes every byte, until standard input ends
 */
#include "broker/client/client.h"
#include "broker/client/publish.h"
#include "tests/gpu/part.h"
#include "tests/gpu/raw.h"
#include "tests/gpu/weights.h"

#include <poll.h>

static struct device_info *cards;
static uint32_t card_count;

static void find_cards(void)
{
	struct ipcc_error err;
	must(device_list(&cards, &card_count, NULL, &err), &err);
}

/* As in an engine: the contexts are there. */
static void open_cards(void)
{
	struct ipcc_error err;
	find_cards();
	for (uint32_t i = 0; i < card_count; i++)
		must(cards[i].device->open(cards[i].name, &err), &err);
}

static int play_cards(int argc, char **argv)
{
	(void)argc, (void)argv;
	find_cards();
	printf("{\"cards\": [");
	for (uint32_t i = 0; i < card_count; i++)
		printf("%s\"%s\"", i > 0 ? ", " : "", cards[i].name);
	printf("]}\n");
	return 0;
}

static int play_free(int argc, char **argv)
{
	(void)argc, (void)argv;
	open_cards();
	printf("{");
	for (uint32_t i = 0; i < card_count; i++) {
		struct device_memory memory;
		struct ipcc_error err;
		must(cards[i].device->memory(cards[i].name, &memory, &err), &err);
		printf("%s\"%s\": %llu", i > 0 ? ", " : "", cards[i].name, (unsigned long long)memory.free_bytes);
	}
	printf("}\n");
	return 0;
}

static struct ipcc_model *attach(struct ipcc_client *client, const char *name)
{
	struct ipcc_error err;
	struct ipcc_model *model;
	must(ipcc_attach(client, &(struct ipcc_attach_options){.model = name}, &model, &err), &err);
	return model;
}

/* Whose memory a segment is, asked of the driver itself and not of what is tested here; its place in `cards`. */
static int owner(const struct ipcc_model *model, uint32_t segment)
{
	cu_memory memory;
	cu_allocation allocation = {0};
	raw_must(cu.import_fd(&memory, (void *)(intptr_t)model->segment_fds[segment], CU_HANDLE_POSIX_FD), "import");
	raw_must(cu.properties(&allocation, memory), "cuMemGetAllocationPropertiesFromHandle");
	cu.release(memory);
	return allocation.location.id;
}

static int play_shard(int argc, char **argv)
{
	struct ipcc_error err;
	struct weights w = {.name = argv[0],
			    .seed = number(argv[1]),
			    .segments = (uint32_t)number(argv[2]),
			    .segment_bytes = number(argv[3]),
			    .every = (uint32_t)number(argv[4])};
	struct ipcc_client *client = dial();
	struct ipcc_model *model = attach(client, w.name);
	(void)argc;
	must(ipcc_map(model, 0, &err), &err);
	must(weights_check(model, &w, &err), &err);
	find_cards();
	raw_must(raw_load(), "cuInit");
	int first = owner(model, 0);
	for (uint32_t i = 1; i < w.segments; i++)
		if (owner(model, i) != first)
			return 1;
	if (first < 0 || (uint32_t)first >= card_count)
		return 1;
	printf("{\"card\": \"%s\", \"place\": %d}\n", cards[first].name, first);
	ipcc_model_free(model);
	ipcc_close(client);
	return 0;
}

/* What a faulty publisher would do: the manifest names one card, the fd is another's. */
static int play_forge(int argc, char **argv)
{
	struct ipcc_error err;
	struct ipcc_field fields[] = {{"device", argv[1]}, {"layout", "test"}, {"model", argv[0]}};
	uint64_t bytes = number(argv[3]);
	struct ipcc_publish_options options = {.name = argv[0],
					       .fields = fields,
					       .field_count = 3,
					       .device = argv[1],
					       .segment_bytes = &bytes,
					       .segment_count = 1};
	struct ipcc_client *client = dial();
	struct ipcc_publish *publish;
	struct device_segment other;
	(void)argc;
	must(ipcc_publish_begin(client, &options, &publish, &err), &err);
	must(publish->device->create(argv[2], "forged", bytes, &other, &err), &err);
	must(publish->device->seal(&other, &err), &err);
	int fd = publish->segments[0].memory.fd;
	publish->segments[0].memory.fd = other.fd;
	other.fd = fd;
	must(ipcc_publish_commit(publish, NULL, NULL, &err), &err);
	publish->device->destroy(&other);
	ipcc_publish_free(publish);
	ipcc_close(client);
	printf("{\"forged\": true}\n");
	return 0;
}

/* The same work with the driver alone: what of an attach's time, and of two at once, is not this project's. */
static double map_raw(const struct ipcc_model *model, int reader, double start)
{
	uint32_t count = model->facts.segments;
	cu_memory memories[WEIGHTS_MAX_SEGMENTS];
	cu_access access = {.location = {CU_LOCATION_DEVICE, reader}, .flags = CU_ACCESS_READ};
	cu_pointer base, at;
	raw_must(cu.reserve(&base, model->facts.bytes, 0, 0, 0), "cuMemAddressReserve");
	at = base;
	for (uint32_t i = 0; i < count; i++)
		raw_must(cu.import_fd(&memories[i], (void *)(intptr_t)model->segment_fds[i], CU_HANDLE_POSIX_FD),
			 "import");
	for (uint32_t i = 0; i < count; i++, at += model->facts.bytes / count)
		raw_must(cu.map(at, model->facts.bytes / count, 0, memories[i], 0), "cuMemMap");
	raw_must(cu.set_access(base, model->facts.bytes, &access, 1), "cuMemSetAccess");
	double mapped = now_ms();
	for (uint32_t i = 0; i < count; i++)
		cu.release(memories[i]);
	while (at > base)
		cu.unmap(at -= model->facts.bytes / count, model->facts.bytes / count);
	cu.unreserve(base, model->facts.bytes);
	return mapped - start;
}

static double map_attached(const struct ipcc_model *model, double start)
{
	struct ipcc_error err;
	struct ipcc_client *client = dial();
	struct ipcc_model *own = attach(client, model->facts.name);
	must(ipcc_map(own, 0, &err), &err);
	double mapped = now_ms();
	ipcc_model_free(own);
	ipcc_close(client);
	return mapped - start;
}

static int play_pace(int argc, char **argv)
{
	char line[64];
	struct ipcc_client *client = dial();
	struct ipcc_model *model = attach(client, argv[0]);
	raw_must(raw_load(), "cuInit");
	int reader = owner(model, 0);
	raw_context(reader); /* as in an engine: on its own card, and on no other */
	printf("{\"ready\": true}\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin) != NULL) {
		double start = (double)number(line) / 1e6;
		while (now_ms() < start)
			;
		printf("{\"ms\": %.4f}\n", argc > 1 ? map_raw(model, reader, start) : map_attached(model, start));
		fflush(stdout);
	}
	ipcc_model_free(model);
	ipcc_close(client);
	return 0;
}

static int play_swap(int argc, char **argv)
{
	struct ipcc_error err;
	struct weights w = {
		.name = argv[0], .device = argv[1], .segments = 2, .segment_bytes = number(argv[3]), .tensors = 5};
	(void)argc;
	open_cards();
	for (w.seed = 0; w.seed < number(argv[2]); w.seed++) {
		struct ipcc_client *client = dial();
		must(weights_publish(client, &w, NULL, &err), &err);
		ipcc_close(client);
	}
	printf("{\"generations\": %s}\n", argv[2]);
	return 0;
}

static int play_watch(int argc, char **argv)
{
	struct pollfd input = {.fd = 0, .events = POLLIN};
	uint64_t attached = 0, missed = 0, newest = 0;
	struct ipcc_error err;
	open_cards();
	for (uint64_t i = 0; poll(&input, 1, 0) == 0; i++) {
		struct ipcc_model *model;
		struct ipcc_model_facts facts;
		struct ipcc_client *client = dial();
		int rc = ipcc_attach(client, &(struct ipcc_attach_options){.model = argv[i % (uint64_t)argc]}, &model,
				     &err);
		if (rc == IPCC_NOT_FOUND) { /* not there yet */
			missed++;
			ipcc_close(client);
			continue;
		}
		must(rc, &err);
		must(ipcc_map(model, 0, &err), &err);
		ipcc_model_facts(model, &facts);
		for (uint32_t k = 0; k < facts.segments; k++)
			must(ipcc_verify_segment(model, k, &err), &err);
		newest = facts.generation > newest ? facts.generation : newest;
		ipcc_model_free(model);
		ipcc_close(client);
		attached++;
	}
	printf("{\"attached\": %llu, \"missed\": %llu, \"newest\": %llu}\n", (unsigned long long)attached,
	       (unsigned long long)missed, (unsigned long long)newest);
	return 0;
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {{"cards", 0, play_cards}, {"free", 0, play_free}, {"shard", 5, play_shard},
					    {"forge", 4, play_forge}, {"pace", 1, play_pace}, {"swap", 4, play_swap},
					    {"watch", 1, play_watch}};
	return part_play(parts, sizeof(parts) / sizeof(parts[0]), argc, argv);
}
