/*
 * The client library under ThreadSanitizer: client DIR MODEL, with a broker in DIR that holds MODEL. Exits 0, or 1 with a
 * sentence; ThreadSanitizer makes it 66. A program of its own since Criterion and TSan do not agree.
 */
#include "broker/client/ipc_cache.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define THREADS 4
#define ROUNDS	100

static struct ipcc_client_options options;
static const char *model_name;

static void check(int rc, const struct ipcc_error *err, const char *what)
{
	if (rc != IPCC_OK) {
		fprintf(stderr, "%s: %s\n", what, err->message);
		exit(1);
	}
}

/* Every thread its own connection and model. */
static void *attach_often(void *unused)
{
	struct ipcc_error err;
	for (int i = 0; i < ROUNDS; i++) {
		struct ipcc_client *client;
		struct ipcc_model *model;
		struct ipcc_attach_options attach = {.model = model_name};
		check(ipcc_connect(&client, &options, &err), &err, "connect");
		check(ipcc_attach(client, &attach, &model, &err), &err, "attach");
		check(ipcc_map(model, 0, &err), &err, "map");
		check(ipcc_detach(model, &err), &err, "detach");
		ipcc_model_free(model);
		ipcc_close(client);
	}
	return unused;
}

/* All threads one connection: requests take turns. */
static void *share_client(void *client)
{
	struct ipcc_error err;
	for (int i = 0; i < ROUNDS; i++) {
		struct ipcc_list *list;
		struct ipcc_stat stat;
		check(ipcc_ping(client, &err), &err, "ping");
		check(ipcc_list(client, &list, &err), &err, "list");
		check(ipcc_stat(client, &stat, &err), &err, "stat");
		ipcc_list_free(list);
	}
	return NULL;
}

/* All threads one mapped model, which nobody writes. */
static void *share_model(void *context)
{
	const struct ipcc_model *model = context;
	struct ipcc_model_facts facts;
	unsigned sum = 0;
	ipcc_model_facts(model, &facts);
	for (uint32_t i = 0; i < facts.tensors; i++) {
		struct ipcc_tensor tensor, found;
		struct ipcc_error err;
		check(ipcc_tensor(model, i, &tensor, &err), &err, "tensor");
		check(ipcc_find(model, tensor.name, &found, &err), &err, "find");
		const unsigned char *bytes = ipcc_address(model, &found);
		sum += tensor.bytes > 0 ? bytes[0] : 0;
	}
	return (void *)(uintptr_t)sum;
}

static void *cancel_soon(void *client)
{
	usleep(50000);
	ipcc_cancel(client);
	return NULL;
}

static void run_all(void *(*function)(void *), void *argument)
{
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, function, argument);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

static void cancel_a_wait(void)
{
	struct ipcc_client *client;
	struct ipcc_model *model;
	struct ipcc_error err;
	pthread_t canceler;
	struct ipcc_attach_options never = {.model = "a-model-that-never-comes", .wait_ms = IPCC_WAIT_FOREVER};
	check(ipcc_connect(&client, &options, &err), &err, "connect");
	pthread_create(&canceler, NULL, cancel_soon, client);
	int rc = ipcc_attach(client, &never, &model, &err);
	pthread_join(canceler, NULL);
	if (rc != IPCC_CANCELED) {
		fprintf(stderr, "a canceled wait ended with %d: %s\n", rc, err.message);
		exit(1);
	}
	ipcc_close(client);
}

int main(int argc, char **argv)
{
	struct ipcc_client *client;
	struct ipcc_model *model;
	struct ipcc_error err;
	if (argc != 3) {
		fprintf(stderr, "usage: %s DIR MODEL\n", argv[0]);
		return 2;
	}
	options.dir = argv[1];
	model_name = argv[2];
	run_all(attach_often, NULL);
	check(ipcc_connect(&client, &options, &err), &err, "connect");
	run_all(share_client, client);
	check(ipcc_attach(client, &(struct ipcc_attach_options){.model = model_name}, &model, &err), &err, "attach");
	check(ipcc_map(model, 0, &err), &err, "map");
	run_all(share_model, model);
	ipcc_model_free(model);
	ipcc_close(client);
	cancel_a_wait();
	return 0;
}
