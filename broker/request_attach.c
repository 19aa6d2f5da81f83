/*
 * ATTACH and DETACH. The connection is the lease: it begins with the reply that brings the fds, and ends with DETACH or
 * with the connection, whatever happens to the process.
 */
#include "broker/lifecycle.h"
#include "bpf/probes.h"
#include "broker/request.h"
#include "manifest/fail.h"

/* The part of the kernel's limit for fds in flight, which is the broker's RLIMIT_NOFILE, that one uid may use up. */
#define UNREAD_SHARE 4

/* Tells a request that was sent again from another one with the same id. */
static uint64_t asked(const struct request *request)
{
	return hash_name(request->bytes, request->length, 0);
}

static int attach_found(struct conn *conn, struct request *request, struct model *model, struct message *reply,
			struct ipcc_error *err)
{
	struct server *server = conn->server;
	uint64_t unread = conn_unread_fds(server, conn->peer.uid);
	if (unread > 0 && unread + model->fd_count + 1 > server->accounts.fd_limit / UNREAD_SHARE)
		return fail(err, IPCC_REFUSED,
			    "uid %u has %llu file descriptors in replies that it has not read; read them, or end those "
			    "processes",
			    conn->peer.uid, (unsigned long long)unread);
	if (conn->lease == NULL) {
		conn->lease_asked = asked(request);
		conn_take_lease(conn, model, request->id);
		int rc = journal_lease(server->journal, conn, err);
		if (rc != IPCC_OK) {
			conn_drop_lease(conn);
			return rc;
		}
		server->counters.attaches++;
		PROBE_KEY_MATCHED(conn->number, request->id, model->id, model->generation, model->name);
	}
	struct attach_reply body = {
		.id = le64_make(model->id),
		.generation = le64_make(model->generation),
		.manifest_bytes = le64_make(model->manifest_bytes),
		.segment_count = le32_make(model->segment_count),
		.flags = le32_make(model->kept ? MODEL_KEPT : 0),
	};
	message_append(reply, &body, sizeof(body));
	return IPCC_OK;
}

/* A keeper that has ended takes its model along before anybody gets it, whichever the loop heard of first. */
static int select_living(struct conn *conn, const struct selection *want, struct model **model, struct ipcc_error *err)
{
	struct server *server = conn->server;
	for (;;) {
		int rc = registry_select(&server->registry, &server->policy, conn_asker(conn), want, model, err);
		if (rc != IPCC_OK || (*model)->keeper == NULL || !conn_is_over((*model)->keeper))
			return rc;
		conn_close((*model)->keeper);
		*model = NULL;
		if (conn->dead) /* its own keeper's */
			return REQUEST_LATER;
	}
}

static int attach_select(struct conn *conn, struct request *request, const struct selection *want,
			 struct message *reply, struct ipcc_error *err)
{
	struct model *model = NULL;
	if (want->wait_ms > 0 && !request->expired) {
		/* Without a message, which nobody reads yet: thousands may wait, and be tried again at every change. */
		int found = select_living(conn, want, &model, NULL);
		if (found == IPCC_BUSY || found == IPCC_NOT_FOUND || found == IPCC_MISMATCH)
			return conn_park(conn, request, want->wait_ms, model == NULL ? 0 : model->id, err);
	}
	int rc = conn->dead ? REQUEST_LATER : select_living(conn, want, &model, err);
	if (rc == IPCC_OK)
		return attach_found(conn, request, model, reply, err);
	if (want->wait_ms == 0 || (rc != IPCC_BUSY && rc != IPCC_NOT_FOUND && rc != IPCC_MISMATCH))
		return rc;
	/* A mismatch stays what it is; for the rest it was the time that ran out. */
	if (rc != IPCC_MISMATCH && err != NULL)
		err->code = IPCC_TIMEOUT;
	return rc == IPCC_MISMATCH ? rc : fail_within(err, "waited %u ms", want->wait_ms);
}

int handle_attach(struct conn *conn, struct request *request, struct message *reply, struct ipcc_error *err)
{
	struct selection want;
	int rc = selection_read(&want, &request->body, err);
	if (rc != IPCC_OK)
		return rc;
	if (!cursor_finished(&request->body))
		rc = fail(err, IPCC_PROTOCOL, "ATTACH: its lengths do not add up");
	else if (conn_reply_unread(conn))
		rc = fail(err, IPCC_PROTOCOL, "ATTACH before the reply to the last one was read");
	else if (conn->lease != NULL &&
		 (conn->lease_request != request->id || conn->lease_asked != asked(request) || conn->lease->dropped))
		rc = fail(err, IPCC_REFUSED, "this connection holds a lease already; detach, or open a second one");
	else if (conn->lease != NULL) /* sent again: the same answer */
		rc = attach_found(conn, request, conn->lease, reply, err);
	else
		rc = attach_select(conn, request, &want, reply, err);
	selection_fini(&want);
	return rc;
}

int handle_detach(struct conn *conn, struct request *request, struct message *reply, struct ipcc_error *err)
{
	(void)reply;
	if (!cursor_finished(&request->body))
		return fail(err, IPCC_PROTOCOL, "DETACH has no body");
	conn_drop_lease(conn);
	return IPCC_OK;
}
