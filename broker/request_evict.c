/*
 * EVICT: a model goes at once, with its last lease, or by force; and the asker may wait for it. A model that is loading goes
 * with its publisher's connection, by force only.
 */
#include "broker/lifecycle.h"
#include "bpf/probes.h"
#include "broker/request.h"
#include "manifest/fail.h"

#include <inttypes.h>
#include <stdio.h>

/* "leased by process 12, 13 and 4 more". */
static int refuse_leased(const struct model *model, struct ipcc_error *err)
{
	char label[MODEL_LABEL_BYTES], holders[160] = "";
	size_t length = 0;
	uint32_t named = 0;
	const struct conn *conn;
	TAILQ_FOREACH(conn, &model->leases, lease_link)
	{
		if (named == 8)
			break;
		length += (size_t)snprintf(holders + length, sizeof(holders) - length, "%s%d", named++ > 0 ? ", " : "",
					   conn->peer.pid);
	}
	if (named < model->lease_count)
		snprintf(holders + length, sizeof(holders) - length, " and %u more", model->lease_count - named);
	return fail(err, IPCC_BUSY, "%s is leased by process %s; end them, or evict with --drain or --force",
		    model_label(model, label), holders);
}

/* Drained, and the asker waits until it is gone: answered when the registry changes. */
static int evict_wait(struct conn *conn, struct request *request, const struct model *model, uint32_t wait_ms,
		      struct ipcc_error *err)
{
	char label[MODEL_LABEL_BYTES];
	if (!request->expired)
		return conn_park(conn, request, wait_ms, model->id, err);
	return fail(err, IPCC_TIMEOUT, "%s still has %u leases after %u ms; it goes with the last one",
		    model_label(model, label), model->lease_count, wait_ms);
}

static int evict_model(struct conn *conn, struct request *request, struct model *model, uint32_t mode, uint32_t wait_ms,
		       struct message *reply, struct ipcc_error *err)
{
	struct server *server = conn->server;
	int rc = policy_evict(&server->policy, conn_asker(conn), model, err);
	if (rc != IPCC_OK)
		return rc;
	if (mode == IPCC_EVICT_IDLE && model->lease_count > 0)
		return refuse_leased(model, err);
	struct evict_reply body = {.id = le64_make(model->id), .leases = le32_make(model->lease_count)};
	char label[MODEL_LABEL_BYTES];
	server->log("evicted: %s, %u leases left, by uid %u pid %d", model_label(model, label), model->lease_count,
		    conn->peer.uid, conn->peer.pid);
	bool leased = model->lease_count > 0;
	server->counters.evictions += model->state == IPCC_MODEL_READY;
	PROBE_MODEL_EVICTED(conn->number, model->id, mode, model->lease_count, model->name);
	if (mode == IPCC_EVICT_FORCE)
		lifecycle_drop(server, model);
	else
		lifecycle_drain(server, model);
	if (mode == IPCC_EVICT_DRAIN && leased && wait_ms > 0)
		return evict_wait(conn, request, model, wait_ms, err);
	message_append(reply, &body, sizeof(body));
	return IPCC_OK;
}

/* A model that is loading goes with its publisher's connection. */
static int evict_publisher(struct conn *conn, struct model *model, struct message *reply, struct ipcc_error *err)
{
	struct ipcc_error reason;
	struct evict_reply body = {.id = le64_make(model->id)};
	int rc = policy_evict(&conn->server->policy, conn_asker(conn), model, err);
	if (rc != IPCC_OK)
		return rc;
	conn->server->counters.evictions++;
	PROBE_MODEL_EVICTED(conn->number, model->id, IPCC_EVICT_FORCE, 0, model->name);
	fail(&reason, IPCC_REFUSED, "the publication was ended by uid %u, process %d", conn->peer.uid, conn->peer.pid);
	conn_goodbye(model->publisher, &reason);
	message_append(reply, &body, sizeof(body));
	return IPCC_OK;
}

int handle_evict(struct conn *conn, struct request *request, struct message *reply, struct ipcc_error *err)
{
	struct server *server = conn->server;
	struct evict_request fixed;
	struct selection want;
	struct model *model = NULL;
	/* A parked eviction waits for the very model that it has drained. */
	uint64_t drained = conn->parked.bytes != NULL ? conn->parked.model_id : 0;
	cursor_copy(&request->body, &fixed, sizeof(fixed));
	int rc = selection_read(&want, &request->body, err);
	if (rc != IPCC_OK)
		return rc;
	uint32_t mode = le32_get(fixed.mode);
	if (!cursor_finished(&request->body) || mode > IPCC_EVICT_FORCE || le32_get(fixed.reserved) != 0) {
		rc = fail(err, IPCC_PROTOCOL, "EVICT: an unknown mode, or its lengths do not add up");
	} else if (drained != 0) {
		model = registry_by_id(&server->registry, drained);
		if (model != NULL) {
			rc = evict_wait(conn, request, model, want.wait_ms, err);
		} else {
			struct evict_reply body = {.id = le64_make(drained)};
			message_append(reply, &body, sizeof(body));
		}
	} else if (want.text[0] == '\0' && want.key.count == 0) {
		rc = fail(err, IPCC_INVALID, "name the model to evict");
	} else {
		rc = registry_select_visible(&server->registry, &server->policy, conn_asker(conn), &want, &model, err);
		if (rc == IPCC_BUSY && mode == IPCC_EVICT_FORCE)
			rc = evict_publisher(conn, model, reply, err);
		else if (rc == IPCC_OK)
			rc = evict_model(conn, request, model, mode, want.wait_ms, reply, err);
	}
	selection_fini(&want);
	return rc;
}
