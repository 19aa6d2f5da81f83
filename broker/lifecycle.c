/* A model's way out, and its traces in the journal; see lifecycle.h. */
#include "broker/lifecycle.h"

#include "broker/conn_message.h"
#include "manifest/fail.h"

/* Everything that a new broker would have to know and that no manifest says. */
void lifecycle_snapshot(struct journal *journal, void *context)
{
	const struct server *server = context;
	const struct model *model;
	TAILQ_FOREACH(model, &server->registry.models, link)
	{
		if (model->state == IPCC_MODEL_LOADING)
			continue;
		journal_model(journal, model, model->kept ? JOURNAL_KEPT : JOURNAL_READY, NULL);
		if (model->state == IPCC_MODEL_DRAINING)
			journal_model(journal, model, model->dropped ? JOURNAL_DROPPED : JOURNAL_DRAINING, NULL);
		const struct conn *conn;
		TAILQ_FOREACH(conn, &model->leases, lease_link)
		journal_lease(journal, conn, NULL);
	}
}

int journal_model(struct journal *journal, const struct model *model, enum journal_kind kind, struct ipcc_error *err)
{
	struct journal_record record = {
		.kind = le32_make(kind),
		.owner_uid = le32_make(model->account->uid),
		.model = le64_make(model->id),
		.conn = le64_make(model->publisher_conn),
		.value = le64_make(kind == JOURNAL_READY || kind == JOURNAL_KEPT ? model->generation : model->bytes),
		.segments = le32_make(model->segment_count),
	};
	return journal_append(journal, record, err);
}

int journal_lease(struct journal *journal, const struct conn *conn, struct ipcc_error *err)
{
	struct journal_record record = {
		.kind = le32_make(JOURNAL_LEASE),
		.model = le64_make(conn->lease->id),
		.conn = le64_make(conn->number),
		.value = le64_make(conn->lease_since_ns),
		.request = le32_make(conn->lease_request),
	};
	return journal_append(journal, record, err);
}

/* Those who wait for it to become ready are told that it will not. */
static void tell_waiters(struct server *server, const struct model *model)
{
	struct conn *conn;
	struct ipcc_error err;
	char label[MODEL_LABEL_BYTES];
	fail(&err, IPCC_NOT_FOUND, "the publisher of %s, process %d, ended without committing it; load it again",
	     model_label(model, label), model->publisher_pid);
	TAILQ_FOREACH(conn, &server->conns, link)
	{
		struct message_header header;
		if (conn->parked.bytes == NULL || conn->parked.model_id != model->id)
			continue;
		memcpy(&header, conn->parked.bytes, sizeof(header));
		if (le16_get(header.type) != MESSAGE_ATTACH)
			continue; /* a second publisher takes over instead */
		conn_unpark(conn);
		conn_send_error(conn, MESSAGE_ATTACH, le32_get(header.request), &err);
		conn_update(conn);
	}
}

/* With their charge. That of the bytes stays: memory that somebody maps is not free. */
static void release_fds(struct server *server, struct model *model)
{
	model_drop_fds(model);
	account_release_manifest(model->account, model->manifest_bytes);
	account_release_fds(&server->accounts, model->account, model->fd_count);
}

/* Tells the peer of a connection something that has no body. */
static void tell(struct conn *conn, enum message_type type)
{
	struct message event;
	message_start(&event, type, 0, IPCC_OK);
	conn_send(conn, &event, false);
	conn_update(conn);
}

/* Nobody has the memory of this model any more: its keeper may free it. */
static void release_keeper(struct model *model)
{
	struct conn *keeper = model->keeper;
	if (keeper == NULL)
		return;
	model->keeper = NULL;
	keeper->kept = NULL;
	if (!keeper->dead)
		tell(keeper, MESSAGE_RELEASED);
}

void lifecycle_remove(struct server *server, struct model *model)
{
	if (model->state == IPCC_MODEL_LOADING) {
		model->publisher->claim = NULL;
		tell_waiters(server, model);
	} else {
		journal_model(server->journal, model, JOURNAL_GONE, NULL);
	}
	release_keeper(model);
	TAILQ_REMOVE(&server->registry.models, model, link);
	if (!model->dropped)
		release_fds(server, model);
	account_release_bytes(&server->accounts, model->account, model->bytes);
	model_free(model);
	server->registry_changed = true;
}

void lifecycle_drain(struct server *server, struct model *model)
{
	if (model->lease_count == 0) {
		lifecycle_remove(server, model);
		return;
	}
	model->state = IPCC_MODEL_DRAINING;
	server->registry_changed = true;
	/* Unwritten, a new broker would find it ready again: more than was asked for, but nothing wrong or lost. */
	journal_model(server->journal, model, JOURNAL_DRAINING, NULL);
}

/* Holders are told with `event`; without any the model is gone at once. */
static void drop(struct server *server, struct model *model, enum message_type event)
{
	if (model->lease_count == 0) {
		lifecycle_remove(server, model);
		return;
	}
	bool dropped = model->dropped;
	model->state = IPCC_MODEL_DRAINING;
	model->dropped = true;
	server->registry_changed = true;
	journal_model(server->journal, model, JOURNAL_DROPPED, NULL);
	if (!dropped)
		release_fds(server, model);
	/* Telling one may end its connection, and with the last lease the model: hold on to it by its id. */
	uint64_t id = model->id;
	struct conn *conn;
	TAILQ_FOREACH(conn, &server->conns, link)
	{
		if (!conn->dead && conn->lease != NULL && conn->lease->id == id)
			tell(conn, event);
	}
}

void lifecycle_drop(struct server *server, struct model *model)
{
	drop(server, model, MESSAGE_EVICTED);
}

void lifecycle_lose(struct server *server, struct model *model)
{
	char label[MODEL_LABEL_BYTES];
	if (!server->stopping)
		server->log("lost: the keeper of %s, process %d, has ended, and its memory with it; %u leases left",
			    model_label(model, label), model->publisher_pid, model->lease_count);
	model->keeper->kept = NULL;
	model->keeper = NULL;
	if (model->state == IPCC_MODEL_READY)
		lost_note(&server->registry.lost, model);
	drop(server, model, MESSAGE_LOST);
}
