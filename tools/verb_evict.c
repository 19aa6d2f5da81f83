/* ipc-cache evict: removes a resident model: only if nobody holds it, or with its last lease, or at once. */
#include "broker/client/ipc_cache.h"
#include "tools/describe.h"
#include "tools/device_option.h"
#include "tools/output.h"
#include "tools/verb.h"

enum { OPTION_DRAIN = 1, OPTION_FORCE, OPTION_WAIT, OPTION_DEVICE };

static const struct argp_option options[] = {
	{"device", OPTION_DEVICE, "DEVICE", 0, "Which of several models of that name: the one on this device", 0},
	{"drain", OPTION_DRAIN, NULL, 0, "Take no new attach; the model goes with its last lease", 0},
	{"wait", OPTION_WAIT, "MS", 0, "With --drain: wait so long (or 'forever') until it is gone", 0},
	{"force", OPTION_FORCE, NULL, 0, "Drop it now; holders are told, and keep their mappings until they unmap", 0},
	{0},
};

struct arguments {
	const char *model, *device;
	enum ipcc_evict_mode mode;
	int wait_ms;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;
	switch (key) {
	case OPTION_DRAIN:
	case OPTION_FORCE:
		if (a->mode != IPCC_EVICT_IDLE)
			argp_error(state, "--drain and --force exclude each other");
		a->mode = key == OPTION_DRAIN ? IPCC_EVICT_DRAIN : IPCC_EVICT_FORCE;
		return 0;
	case OPTION_DEVICE:
		a->device = arg;
		return 0;
	case OPTION_WAIT:
		a->wait_ms = option_wait(state, arg);
		return 0;
	case ARGP_KEY_END:
		if (a->wait_ms != 0 && a->mode != IPCC_EVICT_DRAIN)
			argp_error(state, "--wait needs --drain");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp argp = {
	.options = options,
	.parser = parse,
	.args_doc = "MODEL",
	.doc = "Removes a resident model. Refused while somebody holds it, unless --drain or --force is "
	       "given. " MODEL_DOC,
};

/* The model as it was listed before; one that came in between is known by its id alone. */
static void print_evicted(const struct ipcc_list *list, uint64_t id, bool draining)
{
	const struct ipcc_listing *model = NULL;
	for (uint32_t i = 0; i < list->count; i++)
		if (list->models[i].id == id)
			model = &list->models[i];
	print_json(json_pack("{s:s, s:o, s:o, s:o, s:o}", "state", draining ? "draining" : "gone", "id",
			     json_number(id), "name", model != NULL ? json_text(model->name) : json_null(), "key_id",
			     model != NULL ? json_text(model->key_id) : json_null(), "holders",
			     model != NULL ? describe_holders(model) : json_null()));
}

int verb_evict(struct common *common, int argc, char **argv)
{
	struct arguments a = {0};
	parse_arguments(&argp, &a, &(struct argument){&a.model, "which model?"}, common, 0, argc, argv);
	struct ipcc_client *client = NULL;
	struct ipcc_list *list = NULL;
	struct ipcc_error err;
	bool draining = false;
	int status = IPCC_OK;
	struct device_option device;
	const struct ipcc_field *fields = NULL;
	uint32_t field_count = 0;
	if (device_option(&device, a.device, &fields, &field_count, &err) || common_connect(common, &client, &err) ||
	    (common->json && ipcc_list(client, &list, &err)) ||
	    ipcc_evict(client, a.model, fields, field_count, a.mode, a.wait_ms, &draining, &err)) {
		status = report(common, &err);
	} else if (common->json) {
		print_evicted(list, ipcc_evicted_id(client), draining);
	} else if (draining) {
		fact("evicted",
		     a.mode == IPCC_EVICT_FORCE ? "%s; its memory is free when the last holder lets go"
						: "%s, when its last lease ends: it is draining",
		     a.model);
	} else {
		fact("evicted", "%s", a.model);
	}
	ipcc_list_free(list);
	ipcc_close(client);
	return status;
}
