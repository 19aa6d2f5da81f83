/*
 * Attaching: one request brings the manifest and all segment fds; manifest and sources are checked before the model is
 * handed to the caller, and nothing is mapped before ipcc_map. The segments of a kept model are handles in its manifest.
 *
 * Invariant: model->client is the connection whose lease the model is, or NULL; client->leased points back.
 */
#include "broker/client/client.h"

#include "bpf/probes.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <stdlib.h>

static void model_release(struct ipcc_model *model)
{
	model_unmap(model);
	for (uint32_t i = 0; model->segment_fds != NULL && i < model->facts.segments; i++)
		fd_close(&model->segment_fds[i]);
	manifest_unmap(&model->manifest);
	free(model->segment_fds);
	free(model->mappings);
	free(model->ranges);
	free(model);
}

/* Facts from the manifest; what the reply said must agree with it. */
static int read_facts(struct ipcc_model *model, const struct attach_reply *reply, struct ipcc_error *err)
{
	const struct manifest *m = &model->manifest;
	struct ipcc_model_facts *facts = &model->facts;
	struct key key;
	if (manifest_count(m, SECTION_SEGMENTS) != facts->segments ||
	    le64_get(m->header->generation) != le64_get(reply->generation))
		return fail(err, IPCC_INVALID, "the manifest is not that of the model which the broker announced");
	int rc = manifest_key(m, &key, err);
	if (rc != IPCC_OK)
		return rc;
	hash_text(&key.id, facts->key_id);
	key_fini(&key);
	facts->name = manifest_name(m);
	facts->id = le64_get(reply->id);
	facts->generation = le64_get(m->header->generation);
	facts->created_ns = le64_get(m->header->created_ns);
	facts->owner_uid = le32_get(m->header->owner_uid);
	facts->publisher_pid = (pid_t)le32_get(m->header->publisher_pid);
	facts->tensors = manifest_count(m, SECTION_TENSORS);
	facts->fields = manifest_count(m, SECTION_FIELDS);
	facts->sources = manifest_count(m, SECTION_SOURCES);
	facts->attributes = manifest_count(m, SECTION_ATTRIBUTES);
	facts->manifest = m->bytes;
	facts->manifest_bytes = m->total_bytes;
	facts->kept = (le32_get(reply->flags) & MODEL_KEPT) != 0;
	for (uint32_t i = 0; i < facts->segments; i++) {
		struct ipcc_segment segment;
		rc = manifest_segment(m, i, &segment, err);
		if (rc == IPCC_OK && segment.handle_kind != (facts->kept ? HANDLE_LEGACY : HANDLE_FD))
			rc = fail(err, IPCC_INVALID, "segment %u: the manifest says handle kind %u, the broker %s", i,
				  segment.handle_kind, facts->kept ? "that it is kept" : "sent an fd");
		if (rc == IPCC_OK && add_overflows(facts->bytes, segment.bytes, &facts->bytes))
			rc = fail(err, IPCC_INVALID, "the manifest's segments sum to more than 64 bits hold");
		if (rc != IPCC_OK)
			return rc;
	}
	return IPCC_OK;
}

static int receive_model(struct call *call, struct ipcc_model **model, struct ipcc_error *err)
{
	struct attach_reply reply;
	cursor_copy(&call->body, &reply, sizeof(reply));
	uint32_t segments = le32_get(reply.segment_count);
	bool kept = (le32_get(reply.flags) & MODEL_KEPT) != 0;
	if (segments > MANIFEST_MAX_SEGMENTS)
		return fail(err, IPCC_PROTOCOL, "the broker announced %u segments", segments);
	int rc = call_finished(call, kept ? 1 : segments + 1, err);
	if (rc != IPCC_OK)
		return rc;
	struct ipcc_model *made = calloc(1, sizeof(*made));
	if (made == NULL)
		return fail_errno(err, ENOMEM, "cannot attach");
	made->users = 1;
	made->facts.segments = segments;
	made->segment_fds = malloc((segments + 1) * sizeof(*made->segment_fds));
	made->mappings = calloc(segments + 1, sizeof(*made->mappings));
	made->ranges = calloc(segments + 1, sizeof(struct device_range *));
	if (made->segment_fds == NULL || made->mappings == NULL || made->ranges == NULL) {
		made->facts.segments = 0;
		model_release(made);
		return fail_errno(err, ENOMEM, "cannot attach");
	}
	for (uint32_t i = 0; i < segments; i++)
		made->segment_fds[i] = kept ? -1 : wire_fd_take(&call->fds, i + 1);
	rc = manifest_map(&made->manifest, call->fds.fds[0], err);
	if (rc == IPCC_OK)
		rc = read_facts(made, &reply, err);
	if (rc != IPCC_OK) {
		model_release(made);
		return rc;
	}
	*model = made;
	return IPCC_OK;
}

static int end_lease(struct ipcc_client *client, struct ipcc_error *err)
{
	struct call call;
	call_start(&call, MESSAGE_DETACH);
	int rc = call_run(&call, client, NULL, 0, 0, err);
	if (rc == IPCC_OK)
		rc = call_finished(&call, 0, err);
	call_end(&call);
	return rc;
}

static int attach_target(struct ipcc_client *client, const struct ipcc_attach_options *options,
			 const struct target *target, struct ipcc_model **model, struct ipcc_error *err)
{
	struct call call;
	struct ipcc_model *made = NULL;
	call_start(&call, MESSAGE_ATTACH);
	selection_append(&call.message, target->text, &target->key, options->exact, wire_wait(options->wait_ms));
	int rc = call_run(&call, client, NULL, 0, options->wait_ms, err);
	if (rc != IPCC_OK) {
		call_end(&call);
		return rc;
	}
	rc = receive_model(&call, &made, err);
	if (rc == IPCC_OK)
		PROBE_MANIFEST_VERIFIED(client, made->facts.manifest_bytes, made->facts.tensors);
	call_end(&call);
	const char *root = options->sources != NULL ? options->sources : target->path;
	if (rc == IPCC_OK && root != NULL && options->verify != IPCC_VERIFY_NONE) {
		rc = sources_compare(&made->manifest, root, options->verify, &client->canceled,
				     &made->facts.source_state, err);
		const struct ipcc_error *why = rc == IPCC_MISMATCH ? err : NULL;
		PROBE_SOURCES_COMPARED(client, rc, why != NULL ? why->field : NULL, why != NULL ? why->expected : NULL,
				       why != NULL ? why->got : NULL);
	}
	if (rc != IPCC_OK) {
		end_lease(client, NULL);
		if (made != NULL)
			model_release(made);
		return rc;
	}
	made->client = client;
	client->leased = made;
	*model = made;
	return IPCC_OK;
}

static int attach(struct ipcc_client *client, const struct ipcc_attach_options *options, struct ipcc_model **model,
		  struct ipcc_error *err)
{
	struct target target;
	if (options->verify > IPCC_VERIFY_NONE)
		return fail(err, IPCC_USAGE, "verify %d is not known", options->verify);
	int rc = target_init(&target, options->model, options->fields, options->field_count, err);
	if (rc != IPCC_OK)
		return rc;
	if (atomic_exchange(&client->lease_taken, true)) {
		target_fini(&target);
		return fail(err, IPCC_USAGE, "this connection holds a lease already; detach it, or open a second one");
	}
	client->evicted = client->lost = false;
	rc = attach_target(client, options, &target, model, err);
	if (rc != IPCC_OK)
		client->lease_taken = false;
	target_fini(&target);
	return rc;
}

EXPORT int ipcc_attach(struct ipcc_client *client, const struct ipcc_attach_options *options, struct ipcc_model **model,
		       struct ipcc_error *err)
{
	PROBE_ATTACH_STARTED(client, options->model);
	int rc = attach(client, options, model, err);
	PROBE_ATTACH_FINISHED(client, rc, rc == IPCC_OK ? *model : NULL, rc == IPCC_OK ? (*model)->facts.name : NULL);
	return rc;
}

EXPORT int ipcc_detach(struct ipcc_model *model, struct ipcc_error *err)
{
	struct ipcc_client *client = model->client;
	if (client == NULL)
		return IPCC_OK;
	if (model->facts.kept) /* its keeper may free the memory as soon as the lease is over */
		model_unmap(model);
	model->client = NULL;
	client->leased = NULL;
	int rc = end_lease(client, err);
	client->lease_taken = false;
	return rc;
}

EXPORT enum ipcc_lease ipcc_lease_state(struct ipcc_model *model)
{
	struct ipcc_client *client = model->client;
	if (client == NULL)
		return IPCC_LEASE_ENDED;
	call_poll(client);
	/* Without a broker no keeper stays. */
	if (client->lost || (client->broken && model->facts.kept))
		return IPCC_LEASE_LOST;
	if (client->evicted)
		return IPCC_LEASE_EVICTED;
	return client->broken ? IPCC_LEASE_ENDED : IPCC_LEASE_HELD;
}

void model_drop(struct ipcc_model *model)
{
	if (atomic_fetch_sub(&model->users, 1) == 1)
		model_release(model);
}

EXPORT void ipcc_model_free(struct ipcc_model *model)
{
	if (model == NULL)
		return;
	ipcc_detach(model, NULL);
	model_drop(model);
}
