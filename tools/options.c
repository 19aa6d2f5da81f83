/* How arguments are parsed; see options.h. */
#include "tools/options.h"

#include "broker/client/ipc_cache.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_DIR = 1000, OPTION_TIMEOUT, OPTION_JSON };

static const struct argp_option common_options[] = {
	{"dir", OPTION_DIR, "DIR", 0,
	 "The broker's directory (default: $IPC_CACHE_DIR, else /run/ipc-cache if it exists, "
	 "else /tmp/vllm_ipc_cache_uid_UID)",
	 10},
	{"timeout", OPTION_TIMEOUT, "MS", 0, "How long one request may take (default: 10000 ms; 0: no limit)", 10},
	{"json", OPTION_JSON, NULL, 0, "Print one JSON document, errors included", 10},
	{0},
};

static error_t parse_common(int key, char *arg, struct argp_state *state)
{
	struct common *common = state->input;
	switch (key) {
	case OPTION_DIR:
		common->dir = arg;
		return 0;
	case OPTION_TIMEOUT:
		common->timeout_ms = (int)option_number(state, "--timeout", arg, 0, INT_MAX);
		if (common->timeout_ms == 0)
			common->timeout_ms = IPCC_WAIT_FOREVER;
		return 0;
	case OPTION_JSON:
		common->json = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp common_argp = {.options = common_options, .parser = parse_common};

static error_t parse_argument(int key, char *arg, struct argp_state *state)
{
	const struct argument *argument = state->input;
	switch (key) {
	case ARGP_KEY_ARG:
		option_argument(state, argument->value, arg);
		return 0;
	case ARGP_KEY_END:
		if (*argument->value == NULL)
			argp_error(state, "%s", argument->question);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp argument_argp = {.parser = parse_argument};

/* Hands each of the parsers below what it fills in. */
static error_t parse_all(int key, char *arg, struct argp_state *state)
{
	void *const *inputs = state->input;
	(void)arg;
	for (size_t i = 0; key == ARGP_KEY_INIT && state->root_argp->children[i].argp != NULL; i++)
		state->child_inputs[i] = inputs[i];
	return key == ARGP_KEY_INIT ? 0 : ARGP_ERR_UNKNOWN;
}

void parse_arguments(const struct argp *verb, void *input, const struct argument *argument, struct common *common,
		     unsigned flags, int argc, char **argv)
{
	const struct argp_child children[] = {{verb, 0, NULL, 0},
					      {&common_argp, 0, "Every verb has:", 10},
					      {argument != NULL ? &argument_argp : NULL, 0, NULL, 0},
					      {0}};
	const struct argp all = {.parser = parse_all, .children = children};
	void *inputs[] = {input, common, (void *)argument};
	error_t failed = argp_parse(&all, argc, argv, flags, NULL, inputs);
	if (failed == 0)
		return;
	fprintf(stderr, "%s: cannot parse the arguments: %s\n", argv[0], strerror(failed));
	exit(IPCC_FAILED);
}

void common_parse(struct common *common, const char *doc, int argc, char **argv)
{
	parse_arguments(&(struct argp){.doc = doc}, NULL, NULL, common, 0, argc, argv);
}

int common_connect(const struct common *common, struct ipcc_client **client, struct ipcc_error *err)
{
	struct ipcc_client_options options = {.dir = common->dir, .timeout_ms = common->timeout_ms};
	return ipcc_connect(client, &options, err);
}

uint64_t option_number(const struct argp_state *state, const char *what, const char *text, uint64_t least,
		       uint64_t most)
{
	char *end;
	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	/* strtoull takes signs and leading blanks; a number here starts with a digit. */
	if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < least || value > most)
		argp_error(state, "%s: '%s' is not a number from %llu to %llu", what, text, (unsigned long long)least,
			   (unsigned long long)most);
	return value;
}

int option_wait(const struct argp_state *state, const char *text)
{
	if (strcmp(text, "forever") == 0)
		return IPCC_WAIT_FOREVER;
	return (int)option_number(state, "--wait", text, 0, INT_MAX);
}

void option_argument(const struct argp_state *state, const char **argument, char *text)
{
	if (*argument != NULL)
		argp_error(state, "one argument too many: '%s'", text);
	*argument = text;
}
