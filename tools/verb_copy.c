/* ipc-cache copy: a resident model once more, on another device; a model of its own with the same key but for the device. */
#include "broker/client/ipc_cache.h"
#include "manifest/fail.h"
#include "manifest/format.h"
#include "tools/clock.h"
#include "tools/device_option.h"
#include "tools/interrupt.h"
#include "tools/output.h"
#include "tools/verb.h"

#include <stdlib.h>
#include <string.h>

enum { OPTION_DEVICE = 1, OPTION_FROM, OPTION_NAME, OPTION_REPLACE };

static const struct argp_option options[] = {
	{"device", OPTION_DEVICE, "DEVICE", 0, "Where the copy shall live: host, cuda:1, a GPU's UUID, or auto", 0},
	{"from", OPTION_FROM, "DEVICE", 0, "Which of several models of that name: the one on this device", 0},
	{"name", OPTION_NAME, "NAME", 0, "What to call it (default: what the model is called)", 0},
	{"replace", OPTION_REPLACE, NULL, 0,
	 "Copy it even if there is one already; the old one goes with its last lease", 0},
	{0},
};

struct arguments {
	const char *model;
	const char *device, *from, *name;
	bool replace;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;
	switch (key) {
	case OPTION_DEVICE:
		a->device = arg;
		return 0;
	case OPTION_FROM:
		a->from = arg;
		return 0;
	case OPTION_NAME:
		a->name = arg;
		return 0;
	case OPTION_REPLACE:
		a->replace = true;
		return 0;
	case ARGP_KEY_END:
		if (a->device == NULL)
			argp_error(state, "where to? give --device");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp argp = {
	.options = options,
	.parser = parse,
	.args_doc = "MODEL",
	.doc = "Copies a resident model to another device: from GPU to GPU directly where they reach each other, else "
	       "through host memory. " MODEL_DOC,
};

/* What the manifest says besides its segments. */
static int describe(struct ipcc_publish *publish, const struct ipcc_model *model, const struct ipcc_model_facts *facts,
		    struct ipcc_error *err)
{
	int rc = IPCC_OK;
	for (uint32_t i = 0; rc == IPCC_OK && i < facts->tensors; i++) {
		struct ipcc_tensor tensor;
		rc = ipcc_tensor(model, i, &tensor, err);
		if (rc == IPCC_OK)
			rc = ipcc_publish_tensor(publish, &tensor, err);
	}
	for (uint32_t i = 0; rc == IPCC_OK && i < facts->sources; i++) {
		struct ipcc_source source;
		rc = ipcc_source(model, i, &source, err);
		if (rc == IPCC_OK)
			rc = ipcc_publish_source(publish, &source, err);
	}
	for (uint32_t i = 0; rc == IPCC_OK && i < facts->attributes; i++) {
		struct ipcc_attribute attribute;
		rc = ipcc_attribute(model, i, &attribute, err);
		if (rc == IPCC_OK)
			rc = ipcc_publish_attribute(publish, &attribute, err);
	}
	return rc;
}

/* The model's key with another device, and its segments' sizes. */
static int plan_copy(const struct ipcc_model *model, const struct ipcc_model_facts *facts, const char *device,
		     struct ipcc_field *fields, uint32_t *field_count, uint64_t *bytes, struct ipcc_error *err)
{
	bool named = false;
	uint32_t count = 0;
	int rc = IPCC_OK;
	for (uint32_t i = 0; rc == IPCC_OK && i < facts->fields; i++) {
		rc = ipcc_field(model, i, &fields[count], err);
		if (rc == IPCC_OK && strcmp(fields[count].name, "device") == 0) {
			if (strcmp(fields[count].value, device) == 0)
				return fail(err, IPCC_EXISTS, "%s is on %s already", facts->name, device);
			fields[count].value = device;
			named = true;
		}
		count++;
	}
	if (!named && count < MANIFEST_MAX_FIELDS)
		fields[count++] = (struct ipcc_field){"device", device};
	for (uint32_t i = 0; rc == IPCC_OK && i < facts->segments; i++) {
		struct ipcc_segment segment;
		rc = ipcc_segment(model, i, &segment, err);
		bytes[i] = rc == IPCC_OK ? segment.bytes : 0;
	}
	*field_count = count;
	return rc;
}

/* What is told of the copy. */
struct outcome {
	uint64_t generation;
	uint64_t start_ns;
	uint64_t ns;	    /* until the copy could be attached to, */
	uint64_t driver_ns; /* of which starting the GPU's driver */
	uint64_t phase_ns[IPCC_PHASES];
};

/* `client` publishes; the model is another connection's. */
static int copy(const struct arguments *a, struct ipcc_client *client, struct ipcc_model *model, const char *device,
		struct outcome *outcome, struct ipcc_error *err)
{
	struct ipcc_model_facts facts;
	struct ipcc_field fields[MANIFEST_MAX_FIELDS];
	uint64_t bytes[MANIFEST_MAX_SEGMENTS];
	struct ipcc_publish *publish;
	ipcc_model_facts(model, &facts);
	struct ipcc_publish_options begin = {.name = a->name != NULL ? a->name : facts.name,
					     .fields = fields,
					     .device = device,
					     .segment_bytes = bytes,
					     .segment_count = facts.segments,
					     .replace = a->replace,
					     .overwritten = true};
	int rc = plan_copy(model, &facts, device, fields, &begin.field_count, bytes, err);
	if (rc == IPCC_OK)
		rc = ipcc_publish_begin(client, &begin, &publish, err);
	if (rc != IPCC_OK)
		return rc;
	rc = describe(publish, model, &facts, err);
	if (rc == IPCC_OK)
		rc = ipcc_publish_copy(publish, model, err);
	if (rc == IPCC_OK)
		rc = ipcc_publish_commit(publish, NULL, &outcome->generation, err);
	outcome->ns = clock_ns() - outcome->start_ns;
	for (int i = 0; i < IPCC_PHASES; i++)
		outcome->phase_ns[i] = ipcc_publish_phase_ns(publish, (enum ipcc_phase)i);
	ipcc_publish_free(publish);
	return rc;
}

static const char *const phases[IPCC_PHASES] = {
	[IPCC_PHASE_CLAIM] = "claim",	[IPCC_PHASE_OPEN] = "context", [IPCC_PHASE_CREATE] = "create",
	[IPCC_PHASE_MAP] = "map",	[IPCC_PHASE_BYTES] = "bytes",  [IPCC_PHASE_SEAL] = "seal",
	[IPCC_PHASE_COMMIT] = "commit",
};

static void print_result(const struct common *common, const struct ipcc_model *model, const char *device,
			 const struct outcome *o)
{
	struct ipcc_model_facts facts;
	ipcc_model_facts(model, &facts);
	if (common->json) {
		json_t *ms = checked(json_pack("{s:f}", "driver", (double)o->driver_ns / 1e6));
		for (int i = 0; i < IPCC_PHASES; i++)
			json_object_set_new(ms, phases[i], checked(json_real((double)o->phase_ns[i] / 1e6)));
		print_json(json_pack("{s:o, s:o, s:o, s:o, s:f, s:o}", "name", json_text(facts.name), "device",
				     json_text(device), "generation", json_number(o->generation), "bytes",
				     json_number(facts.bytes), "seconds", (double)o->ns / 1e9, "phases_ms", ms));
		return;
	}
	uint64_t bytes_ns = o->phase_ns[IPCC_PHASE_BYTES];
	fact("model", "%s, generation %llu", facts.name, (unsigned long long)o->generation);
	fact("device", "%s", device);
	fact("copied", "%s in %.3f s; the bytes in %.3f s, %s", text_bytes(facts.bytes).text, (double)o->ns / 1e9,
	     (double)bytes_ns / 1e9, text_rate(facts.bytes, bytes_ns).text);
	fact("phases", "driver %.1f ms", (double)o->driver_ns / 1e6);
	for (int i = 0; i < IPCC_PHASES; i++)
		fact("", "%s %.1f ms", phases[i], (double)o->phase_ns[i] / 1e6);
}

int verb_copy(struct common *common, int argc, char **argv)
{
	struct arguments a = {0};
	parse_arguments(&argp, &a, &(struct argument){&a.model, "which model?"}, common, 0, argc, argv);
	struct ipcc_client *reader = NULL, *publisher = NULL;
	struct ipcc_model *model = NULL;
	struct ipcc_error err;
	char device[IPCC_DEVICE_CHARS];
	struct outcome outcome = {.start_ns = clock_ns()};
	struct device_option from;
	struct ipcc_attach_options attach = {.model = a.model, .verify = IPCC_VERIFY_NONE};
	int rc = ipcc_device(a.device, device, &err);
	outcome.driver_ns = clock_ns() - outcome.start_ns;
	if (rc == IPCC_OK)
		rc = device_option(&from, a.from, &attach.fields, &attach.field_count, &err);
	if (rc == IPCC_OK)
		rc = common_connect(common, &reader, &err);
	if (rc == IPCC_OK)
		rc = common_connect(common, &publisher, &err);
	interrupt_watch(publisher);
	if (rc == IPCC_OK)
		rc = ipcc_attach(reader, &attach, &model, &err);
	if (rc == IPCC_OK)
		rc = copy(&a, publisher, model, device, &outcome, &err);
	interrupt_watch(NULL);
	if (rc == IPCC_OK)
		print_result(common, model, device, &outcome);
	ipcc_model_free(model);
	ipcc_close(reader);
	ipcc_close(publisher);
	return rc == IPCC_OK ? IPCC_OK : report(common, &err);
}
