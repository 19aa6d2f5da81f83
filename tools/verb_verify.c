/* ipc-cache verify: hashes a resident model again. Names every damaged block, and the tensors that lie in it. */
#include "broker/client/ipc_cache.h"
#include "manifest/fail.h"
#include "manifest/fd.h"
#include "manifest/reader.h"
#include "tools/clock.h"
#include "tools/device_option.h"
#include "tools/output.h"
#include "tools/verb.h"

#include <stdlib.h>
#include <string.h>

enum { OPTION_DEVICE = 1 };

struct arguments {
	const char *model, *device;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;
	switch (key) {
	case OPTION_DEVICE:
		a->device = arg;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option options[] = {
	{"device", OPTION_DEVICE, "DEVICE", 0, "Which of several models of that name: the one on this device", 0},
	{0},
};

static const struct argp argp = {
	.options = options,
	.parser = parse,
	.args_doc = "MODEL",
	.doc = "Hashes a resident model again and compares with its manifest. The exit status is 4 if a block is "
	       "damaged. " MODEL_DOC,
};

/* The names of the tensors that have bytes in [begin, end) of a segment. */
static json_t *tensors_within(const struct ipcc_model *model, uint32_t segment, uint64_t begin, uint64_t end)
{
	json_t *names = checked(json_array());
	struct ipcc_tensor t;
	for (uint32_t i = 0; ipcc_tensor(model, i, &t, NULL) == IPCC_OK; i++)
		if (t.segment == segment && t.offset < end && t.offset + t.bytes > begin)
			json_array_append_new(names, json_text(t.name));
	return names;
}

/* Adds every block of a segment that differs from its hash. */
static void find_damage(const struct ipcc_model *model, const struct manifest *m, uint32_t i, json_t *damage)
{
	struct ipcc_segment segment;
	const struct hash128 *blocks = manifest_blocks(m, i);
	cleanup_free void *buffer = checked(malloc(HASH_BLOCK_BYTES));
	if (ipcc_segment(model, i, &segment, NULL) != IPCC_OK || blocks == NULL)
		return;
	for (uint32_t b = 0; b < segment.block_count; b++) {
		uint64_t begin = b * HASH_BLOCK_BYTES, end = begin + HASH_BLOCK_BYTES;
		end = end < segment.bytes ? end : segment.bytes;
		if (ipcc_read(model, i, begin, buffer, end - begin, NULL) != IPCC_OK)
			return;
		struct hash128 now = hash_bytes(buffer, end - begin);
		if (memcmp(&now, &blocks[b], sizeof(now)) == 0)
			continue;
		json_array_append_new(damage, checked(json_pack("{s:o, s:o, s:o, s:o, s:o}", "segment", json_number(i),
								"block", json_number(b), "offset", json_number(begin),
								"bytes", json_number(end - begin), "tensors",
								tensors_within(model, i, begin, end))));
	}
}

static void print_damage(const json_t *damage)
{
	size_t i, j;
	json_t *block, *name;
	json_array_foreach(damage, i, block)
	{
		fact("damaged", "segment %lld block %lld: %lld bytes at offset %lld",
		     json_integer_value(json_object_get(block, "segment")),
		     json_integer_value(json_object_get(block, "block")),
		     json_integer_value(json_object_get(block, "bytes")),
		     json_integer_value(json_object_get(block, "offset")));
		json_array_foreach(json_object_get(block, "tensors"), j, name) fact("", "%s", json_string_value(name));
	}
}

/* Hashes all segments. Damage is collected in `damage`; any other error ends it. */
static int verify_segments(const struct ipcc_model *model, json_t *damage, struct ipcc_error *err)
{
	struct ipcc_model_facts facts;
	struct manifest m;
	ipcc_model_facts(model, &facts);
	int rc = manifest_init(&m, facts.manifest, facts.manifest_bytes, false, err);
	if (rc != IPCC_OK)
		return rc;
	for (uint32_t i = 0; i < facts.segments; i++) {
		rc = ipcc_verify_segment(model, i, err);
		if (rc == IPCC_MISMATCH)
			find_damage(model, &m, i, damage);
		else if (rc != IPCC_OK)
			return rc;
	}
	if (json_array_size(damage) > 0)
		return fail(err, IPCC_MISMATCH, "%s: %zu damaged block%s; evict it and load it again", facts.name,
			    json_array_size(damage), json_array_size(damage) == 1 ? "" : "s");
	return IPCC_OK;
}

static void print_result(const struct common *common, const struct ipcc_model *model, json_t *damage, uint64_t ns)
{
	struct ipcc_model_facts facts;
	ipcc_model_facts(model, &facts);
	double seconds = (double)ns / 1e9;
	if (common->json) {
		print_json(json_pack("{s:o, s:o, s:o, s:o, s:f, s:O}", "name", json_text(facts.name), "key_id",
				     json_text(facts.key_id), "generation", json_number(facts.generation), "bytes",
				     json_number(facts.bytes), "seconds", seconds, "damage", damage));
		return;
	}
	fact("model", "%s, generation %llu", facts.name, (unsigned long long)facts.generation);
	fact("hashed", "%s in %.3f s, %s", text_bytes(facts.bytes).text, seconds, text_rate(facts.bytes, ns).text);
	print_damage(damage);
	if (json_array_size(damage) == 0)
		fact("result", "intact");
}

int verb_verify(struct common *common, int argc, char **argv)
{
	struct arguments a = {0};
	parse_arguments(&argp, &a, &(struct argument){&a.model, "which model?"}, common, 0, argc, argv);
	struct ipcc_client *client = NULL;
	struct ipcc_model *model = NULL;
	struct ipcc_error err;
	struct ipcc_attach_options attach = {.model = a.model, .verify = IPCC_VERIFY_NONE};
	json_t *damage = checked(json_array());
	int rc, status = IPCC_OK;
	struct device_option device;
	if (device_option(&device, a.device, &attach.fields, &attach.field_count, &err) ||
	    common_connect(common, &client, &err) || ipcc_attach(client, &attach, &model, &err) ||
	    ipcc_map(model, 0, &err)) {
		status = report(common, &err);
	} else {
		uint64_t start_ns = clock_ns();
		rc = verify_segments(model, damage, &err);
		bool damaged = json_array_size(damage) > 0;
		if (rc == IPCC_OK || damaged)
			print_result(common, model, damage, clock_ns() - start_ns);
		if (rc != IPCC_OK)
			status = damaged ? report_text(common, &err) : report(common, &err);
	}
	json_decref(damage);
	ipcc_model_free(model);
	ipcc_close(client);
	return status;
}
