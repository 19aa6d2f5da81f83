/* ipc-cache: the command. Finds the verb and hands it the rest; every verb has a file of its own, verb_VERB.c. */
#include "tools/output.h"
#include "tools/verb.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

static const struct verb {
	const char *name;
	verb_function *run;
	const char *summary;
} verbs[] = {
	{"load", verb_load, "load a model from safetensors files and make it resident"},
	{"ls", verb_ls, "list resident models and who holds them"},
	{"attach", verb_attach, "attach to a resident model and time it"},
	{"dump", verb_dump, "show the manifest of a resident model, or of a file"},
	{"verify", verb_verify, "hash a resident model again and name what is damaged"},
	{"copy", verb_copy, "copy a resident model to another device"},
	{"evict", verb_evict, "remove a resident model"},
	{"inspect", verb_inspect, "check a safetensors file or model folder, without a broker"},
	{"ping", verb_ping, "time one round trip to the broker"},
	{"stat", verb_stat, "show what the broker holds and has done"},
	{"doctor", verb_doctor, "say what is wrong with this machine or set-up, and the remedy"},
};

/* argp in the C library must see it, whatever -fvisibility says. */
__attribute__((visibility("default"))) const char *argp_program_version = "ipc-cache " IPCC_VERSION;

struct arguments {
	struct common common;
	const struct verb *verb;
	int verb_index; /* in argv */
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;
	switch (key) {
	case ARGP_KEY_ARG:
		for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
			if (strcmp(verbs[i].name, arg) == 0)
				a->verb = &verbs[i];
		if (a->verb == NULL)
			argp_error(state, "there is no verb '%s'", arg);
		a->verb_index = state->next - 1;
		state->next = state->argc; /* the rest is the verb's */
		return 0;
	case ARGP_KEY_NO_ARGS:
		argp_error(state, "which verb?");
		return EINVAL;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* The verbs and their summaries, as --help shows them after the first line. */
static char *help_filter(int key, const char *text, void *input)
{
	(void)input;
	if (key != ARGP_KEY_HELP_PRE_DOC)
		return (char *)text;
	char *help = format_text("%s\n", text);
	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
		char *longer = format_text("%s\n  %-8s  %s", help, verbs[i].name, verbs[i].summary);
		free(help);
		help = longer;
	}
	return help;
}

int main(int argc, char **argv)
{
	setlocale(LC_CTYPE, ""); /* numbers and dates keep the C form */
	output_init();
	argp_err_exit_status = IPCC_USAGE;

	static const struct argp argp = {
		.parser = parse,
		.args_doc = "VERB [ARGUMENT...]",
		.doc = "Loads model weights once per machine and shares them with every engine."
		       "\v'ipc-cache VERB --help' explains a verb; ipc-cache(1) explains all, with the fields of "
		       "--json and "
		       "the exit status.",
		.help_filter = help_filter,
	};
	struct arguments a = {.common.verb = ""};
	argv[0] = (char *)"ipc-cache";
	parse_arguments(&argp, &a, NULL, &a.common, ARGP_IN_ORDER, argc, argv);

	char *name = format_text("ipc-cache %s", a.verb->name);
	a.common.verb = a.verb->name;
	argv[a.verb_index] = name;
	int status = a.verb->run(&a.common, argc - a.verb_index, argv + a.verb_index);
	free(name);
	return status;
}
