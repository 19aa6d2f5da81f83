/* ipc-cache attach: attaches to a resident model as an engine would, times the parts, and may stay attached. */
#include "broker/client/ipc_cache.h"
#include "tools/clock.h"
#include "tools/device_option.h"
#include "tools/hold.h"
#include "tools/output.h"
#include "tools/samples.h"
#include "tools/table.h"
#include "tools/verb.h"

#include <string.h>
#include <unistd.h>

#define MAX_REPEAT 10000000

enum { OPTION_REPEAT = 1, OPTION_HOLD, OPTION_VERIFY, OPTION_SOURCES, OPTION_WAIT, OPTION_PRIVATE, OPTION_DEVICE };

static const struct argp_option options[] = {
	{"repeat", OPTION_REPEAT, "N", 0, "Connect, attach, map and let go N times, and show the percentiles", 0},
	{"hold", OPTION_HOLD, NULL, 0, "Stay attached until SIGINT, SIGTERM, or the end of a pipe on standard input",
	 0},
	{"verify", OPTION_VERIFY, "HOW", 0,
	 "Compare the source files by stat (default), by hash where stat cannot tell, or "
	 "none",
	 0},
	{"sources", OPTION_SOURCES, "PATH", 0, "The source files to compare (default: MODEL, if it is a path)", 0},
	{"wait", OPTION_WAIT, "MS", 0, "Wait so long (or 'forever') for a model that is loading or not there yet", 0},
	{"device", OPTION_DEVICE, "DEVICE", 0, "Which of several models of that name: the one on this device", 0},
	{"private", OPTION_PRIVATE, NULL, 0, "Map copy-on-write instead of read-only", 0},
	{0},
};

enum phase { PHASE_CONNECT, PHASE_ATTACH, PHASE_MAP, PHASE_TOTAL, PHASE_COUNT };
static const char *const phase_names[PHASE_COUNT] = {"connect", "attach", "map", "total"};

struct arguments {
	struct common *common;
	struct ipcc_attach_options attach;
	const char *device;
	unsigned map_flags;
	uint64_t repeat;
	bool hold;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;
	switch (key) {
	case OPTION_REPEAT:
		a->repeat = option_number(state, "--repeat", arg, 1, MAX_REPEAT);
		return 0;
	case OPTION_HOLD:
		a->hold = true;
		return 0;
	case OPTION_VERIFY:
		if (strcmp(arg, "stat") == 0)
			a->attach.verify = IPCC_VERIFY_STAT;
		else if (strcmp(arg, "hash") == 0)
			a->attach.verify = IPCC_VERIFY_HASH;
		else if (strcmp(arg, "none") == 0)
			a->attach.verify = IPCC_VERIFY_NONE;
		else
			argp_error(state, "--verify: '%s' is none of stat, hash, none", arg);
		return 0;
	case OPTION_SOURCES:
		a->attach.sources = arg;
		return 0;
	case OPTION_WAIT:
		a->attach.wait_ms = option_wait(state, arg);
		return 0;
	case OPTION_DEVICE:
		a->device = arg;
		return 0;
	case OPTION_PRIVATE:
		a->map_flags |= IPCC_MAP_PRIVATE;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp argp = {
	.options = options,
	.parser = parse,
	.args_doc = "MODEL",
	.doc = "Attaches to a resident model as an engine would, and shows how long connecting, attaching and mapping "
	       "took. " MODEL_DOC,
};

/* Connects, attaches and maps, and adds how long each took. On failure nothing is left open. */
static int attach_once(const struct arguments *a, struct samples *phases, struct ipcc_client **client,
		       struct ipcc_model **model, struct ipcc_error *err)
{
	*client = NULL;
	*model = NULL;
	uint64_t at_ns[PHASE_COUNT];
	at_ns[0] = clock_ns();
	int rc = common_connect(a->common, client, err);
	at_ns[1] = clock_ns();
	if (rc == IPCC_OK)
		rc = ipcc_attach(*client, &a->attach, model, err);
	at_ns[2] = clock_ns();
	if (rc == IPCC_OK)
		rc = ipcc_map(*model, a->map_flags, err);
	at_ns[3] = clock_ns();
	if (rc != IPCC_OK) {
		ipcc_model_free(*model);
		ipcc_close(*client);
		return rc;
	}
	for (int i = 0; i < PHASE_TOTAL; i++)
		samples_add(&phases[i], at_ns[i + 1] - at_ns[i]);
	samples_add(&phases[PHASE_TOTAL], at_ns[PHASE_TOTAL] - at_ns[0]);
	return IPCC_OK;
}

static const char *source_state_name(enum ipcc_source_state state)
{
	switch (state) {
	case IPCC_SOURCES_SAME:
		return "same";
	case IPCC_SOURCES_VERIFIED:
		return "verified";
	default:
		return "unchecked";
	}
}

static void print_json_result(const struct ipcc_model_facts *facts, uint64_t repeat,
			      const struct percentiles times[PHASE_COUNT])
{
	json_t *phases = checked(json_object());
	for (int i = 0; i < PHASE_COUNT; i++)
		json_object_set_new(phases, phase_names[i], percentiles_json(&times[i]));
	print_json(json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:i, s:o, s:o}", "name", json_text(facts->name),
			     "key_id", json_text(facts->key_id), "generation", json_number(facts->generation), "bytes",
			     json_number(facts->bytes), "tensors", json_number(facts->tensors), "segments",
			     json_number(facts->segments), "manifest_bytes", json_number(facts->manifest_bytes),
			     "sources", source_state_name(facts->source_state), "pid", getpid(), "repeat",
			     json_number(repeat), "times_us", phases));
}

static void print_result(const struct ipcc_model_facts *facts, uint64_t repeat,
			 const struct percentiles times[PHASE_COUNT])
{
	fact("attached", "%s (key %.8s, generation %llu) by pid %d: %u tensors, %s, sources %s", facts->name,
	     facts->key_id, (unsigned long long)facts->generation, getpid(), facts->tensors,
	     text_size(facts->bytes).text, source_state_name(facts->source_state));
	fact("repeated", "%llu time%s, in microseconds:", (unsigned long long)repeat, repeat == 1 ? "" : "s");
	struct table table;
	table_init(&table, "lrrrrr");
	table_row(&table, (const char *const[]){"", "P50", "P90", "P99", "MIN", "MAX"});
	for (int i = 0; i < PHASE_COUNT; i++) {
		table_cell(&table, "%s", phase_names[i]);
		table_cell(&table, "%.1f", times[i].p50);
		table_cell(&table, "%.1f", times[i].p90);
		table_cell(&table, "%.1f", times[i].p99);
		table_cell(&table, "%.1f", times[i].min);
		table_cell(&table, "%.1f", times[i].max);
	}
	table_print(&table);
}

/* Prints the percentiles, and holds the attached model if that was asked for. Returns the exit status. */
static int finish(const struct arguments *a, struct samples *phases, struct ipcc_client *client,
		  struct ipcc_model *model)
{
	struct percentiles times[PHASE_COUNT];
	for (int i = 0; i < PHASE_COUNT; i++)
		times[i] = samples_percentiles(&phases[i]);
	struct ipcc_model_facts facts;
	ipcc_model_facts(model, &facts);
	struct hold hold;
	struct ipcc_error err;
	if (a->hold && hold_prepare(&hold, &err))
		return report(a->common, &err);
	if (a->common->json)
		print_json_result(&facts, a->repeat, times);
	else
		print_result(&facts, a->repeat, times);
	if (!a->hold)
		return IPCC_OK;
	output_flush();
	return hold_wait(&hold, client, model, &err) == IPCC_OK ? IPCC_OK : report_text(a->common, &err);
}

int verb_attach(struct common *common, int argc, char **argv)
{
	struct arguments a = {.common = common, .repeat = 1};
	parse_arguments(&argp, &a, &(struct argument){&a.attach.model, "which model?"}, common, 0, argc, argv);
	struct samples phases[PHASE_COUNT];
	for (int i = 0; i < PHASE_COUNT; i++)
		samples_init(&phases[i], a.repeat);
	struct ipcc_client *client = NULL;
	struct ipcc_model *model = NULL;
	struct ipcc_error err;
	struct device_option device;
	int rc = device_option(&device, a.device, &a.attach.fields, &a.attach.field_count, &err);
	for (uint64_t i = 0; i < a.repeat && rc == IPCC_OK; i++) {
		ipcc_model_free(model);
		ipcc_close(client);
		rc = attach_once(&a, phases, &client, &model, &err);
	}
	int status;
	if (rc == IPCC_OK) {
		status = finish(&a, phases, client, model);
		ipcc_model_free(model);
		ipcc_close(client);
	} else {
		status = report(common, &err);
	}
	for (int i = 0; i < PHASE_COUNT; i++)
		samples_fini(&phases[i]);
	return status;
}
