/* The parts that have to do with legacy IPC: raw handles, and models that a keeper holds. See actor.c. */
#include "tests/gpu/actor.h"
#include "tests/gpu/raw.h"
#include "tests/gpu/weights.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* The reader, in a process of its own: opens all handles that come, says how long it took, closes them; again. */
static int legacy_reader(uint64_t count, uint64_t rounds)
{
	cu_ipc_handle *handles = calloc(count, sizeof(*handles));
	cu_pointer *at = calloc(count, sizeof(*at));
	double *ms = calloc(rounds, sizeof(*ms));
	raw_must(raw_load(), "cuInit");
	raw_context(0);
	if (fread(handles, sizeof(*handles), count, stdin) != count)
		return 1;
	for (uint64_t r = 0; r < rounds; r++) {
		double start = now_ms();
		for (uint64_t i = 0; i < count; i++)
			raw_must(cu.ipc_open(&at[i], handles[i], CU_IPC_LAZY_PEER), "cuIpcOpenMemHandle");
		ms[r] = now_ms() - start;
		for (uint64_t i = 0; i < count; i++)
			raw_must(cu.ipc_close(at[i]), "cuIpcCloseMemHandle");
	}
	printf("{\"handles\": %llu, ", (unsigned long long)count);
	print_times("open_all_ms", ms, rounds, "}\n");
	return 0;
}

int act_legacy(int argc, char **argv)
{
	uint64_t count = number(argv[0]), bytes = number(argv[1]);
	int ends[2];
	if (argc > 3)
		return legacy_reader(count, number(argv[2]));
	if (pipe(ends) != 0)
		return 1;
	pid_t pid = fork(); /* before the driver is loaded */
	if (pid == 0) {
		dup2(ends[0], 0);
		close(ends[1]);
		execl("/proc/self/exe", "actor", "legacy", argv[0], argv[1], argv[2], "reader", NULL);
		_exit(126);
	}
	close(ends[0]);
	FILE *to = fdopen(ends[1], "w");
	raw_must(raw_load(), "cuInit");
	raw_context(0);
	for (uint64_t i = 0; i < count; i++) {
		cu_pointer at;
		cu_ipc_handle handle;
		raw_must(cu.allocate(&at, bytes), "cuMemAlloc");
		raw_must(cu.ipc_get(&handle, at), "cuIpcGetMemHandle");
		fwrite(&handle, sizeof(handle), 1, to);
	}
	fclose(to);
	int status = 1;
	waitpid(pid, &status, 0);
	return status == 0 ? 0 : 1;
}

int act_keep(int argc, char **argv)
{
	struct ipcc_error err;
	struct ipcc_publish *kept;
	struct weights w = {.name = argv[0],
			    .device = argv[1],
			    .seed = number(argv[2]),
			    .segments = (uint32_t)number(argv[3]),
			    .segment_bytes = number(argv[4]),
			    .tensors = 5,
			    .keep = true};
	struct ipcc_client *client = dial();
	double start = now_ms();
	(void)argc;
	must(weights_publish(client, &w, &kept, &err), &err);
	printf("{\"published_ms\": %.1f}\n", now_ms() - start);
	fflush(stdout);
	must(ipcc_publish_keep(kept, &err), &err);
	ipcc_publish_free(kept);
	/* The connection is an ordinary one again. */
	must(ipcc_ping(client, &err), &err);
	ipcc_close(client);
	printf("{\"released\": true}\n");
	return 0;
}

/* What a kept model does not do, it says. */
static int check_refusals(struct ipcc_model *model)
{
	struct ipcc_error err;
	if (ipcc_map(model, IPCC_MAP_PRIVATE, &err) != IPCC_REFUSED)
		return 1;
	must(ipcc_map(model, 0, &err), &err);
	if (ipcc_suspend(model, &err) != IPCC_REFUSED || ipcc_resume(model, &err) != IPCC_USAGE)
		return 1;
	if (ipcc_segment_address(model, 0) == NULL)
		return 1;
	must(ipcc_detach(model, &err), &err);
	/* What is no longer leased is not mapped either. */
	return ipcc_segment_address(model, 0) != NULL || ipcc_map(model, 0, &err) != IPCC_USAGE;
}

int act_kept(int argc, char **argv)
{
	size_t rounds = number(argv[1]);
	double *ms = calloc(rounds, sizeof(*ms));
	struct ipcc_error err;
	struct ipcc_client *client = dial();
	struct ipcc_model *model;
	(void)argc;
	raw_must(raw_load(), "cuInit");
	raw_context(0);
	must(ipcc_attach(client, &(struct ipcc_attach_options){.model = argv[0]}, &model, &err), &err);
	if (check_refusals(model) != 0)
		return 2;
	ipcc_model_free(model);
	ipcc_close(client);
	for (size_t i = 0; i < rounds; i++) {
		double start = now_ms();
		model = attach_mapped(argv[0], &client);
		ms[i] = now_ms() - start;
		if (i + 1 < rounds) {
			ipcc_model_free(model);
			ipcc_close(client);
		}
	}
	printf("{\"rounds\": %zu, ", rounds);
	print_times("connect_to_mapped_ms", ms, rounds, "}\n");
	fflush(stdout);
	free(ms);
	struct pollfd broker = {.fd = ipcc_fd(client), .events = POLLIN};
	poll(&broker, 1, -1);
	enum ipcc_lease lease = ipcc_lease_state(model);
	ipcc_model_free(model);
	ipcc_close(client);
	printf("{\"lease\": \"%s\"}\n", lease == IPCC_LEASE_LOST      ? "lost"
					: lease == IPCC_LEASE_EVICTED ? "evicted"
								      : "?");
	return 0;
}
