/* HELLO, LIST, PING, STAT: greeting and looking. */
#include "broker/request.h"
#include "manifest/fail.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

int handle_hello(struct conn *conn, struct request *request, struct message *reply, struct ipcc_error *err)
{
	struct hello_request hello;
	cursor_copy(&request->body, &hello, sizeof(hello));
	if (!cursor_finished(&request->body) || memcmp(hello.magic, PROTOCOL_MAGIC, sizeof(hello.magic)) != 0 ||
	    le32_get(hello.reserved) != 0)
		return fail(err, IPCC_PROTOCOL, "HELLO: this is no ipc-cache client");
	if (le16_get(hello.major) != PROTOCOL_MAJOR)
		return fail(err, IPCC_PROTOCOL,
			    "the client speaks protocol version %u, this broker speaks %d; install the same release on "
			    "both sides",
			    le16_get(hello.major), PROTOCOL_MAJOR);
	conn->greeted = true;
	struct hello_reply body = {
		.major = le16_make(PROTOCOL_MAJOR),
		.minor = le16_make(PROTOCOL_MINOR),
		.max_manifest_bytes = le64_make(MANIFEST_MAX_BYTES),
		.max_segments = le32_make(MANIFEST_MAX_SEGMENTS),
	};
	memcpy(body.instance, conn->server->instance, sizeof(body.instance));
	message_append(reply, &body, sizeof(body));
	return IPCC_OK;
}

int handle_ping(struct conn *conn, struct request *request, struct message *reply, struct ipcc_error *err)
{
	(void)conn, (void)reply;
	return cursor_finished(&request->body) ? IPCC_OK : fail(err, IPCC_PROTOCOL, "PING has no body");
}

int handle_stat(struct conn *conn, struct request *request, struct message *reply, struct ipcc_error *err)
{
	const struct server *server = conn->server;
	const struct counters *counters = &server->counters;
	uint64_t loading = 0, resident = 0;
	const struct model *model;
	if (!cursor_finished(&request->body))
		return fail(err, IPCC_PROTOCOL, "STAT has no body");
	TAILQ_FOREACH(model, &server->registry.models, link)
	{
		loading += model->state == IPCC_MODEL_LOADING;
		resident += model->state != IPCC_MODEL_LOADING;
	}
	struct stat_reply body = {
		.pid = le32_make((uint32_t)getpid()),
		.uid = le32_make(server->policy.self),
		.uptime_ns = le64_make(now_ms() * 1000000 - server->started_ns),
		.connections = le64_make(server->accounts.connections),
		.models = le64_make(resident),
		.loading = le64_make(loading),
		.leases = le64_make(server->lease_count),
		.bytes = le64_make(server->accounts.bytes),
		.fds = le64_make(accounts_model_fds(&server->accounts)),
		.fd_limit = le64_make(server->accounts.fd_limit),
		.accepted = le64_make(counters->accepted),
		.refused = le64_make(counters->refused),
		.attaches = le64_make(counters->attaches),
		.mismatches = le64_make(counters->mismatches),
		.commits = le64_make(counters->commits),
		.evictions = le64_make(counters->evictions),
	};
	memcpy(body.instance, server->instance, sizeof(body.instance));
	snprintf((char *)body.version, sizeof(body.version), "%s", IPCC_VERSION);
	message_append(reply, &body, sizeof(body));
	return IPCC_OK;
}

static void list_holders(struct message *reply, const struct model *model, uint16_t count)
{
	const struct conn *conn;
	TAILQ_FOREACH(conn, &model->leases, lease_link)
	{
		if (count-- == 0)
			return;
		struct list_holder holder = {.pid = le32_make((uint32_t)conn->peer.pid),
					     .uid = le32_make(conn->peer.uid),
					     .since_ns = le64_make(conn->lease_since_ns)};
		message_append(reply, &holder, sizeof(holder));
	}
}

/* False, and nothing added, when the message has no room for it. */
static bool list_model(struct message *reply, const struct model *model)
{
	uint16_t holders =
		model->lease_count < PROTOCOL_MAX_HOLDERS ? (uint16_t)model->lease_count : PROTOCOL_MAX_HOLDERS;
	size_t name_bytes = strlen(model->name);
	struct list_entry entry = {
		.id = le64_make(model->id),
		.generation = le64_make(model->state == IPCC_MODEL_LOADING ? 0 : model->generation),
		.created_ns = le64_make(model->created_ns),
		.bytes = le64_make(model->bytes),
		.state = le32_make(model->state),
		.owner_uid = le32_make(model->account->uid),
		.publisher_pid = le32_make((uint32_t)model->publisher_pid),
		.visibility = le32_make(model->visibility),
		.visible_gid = le32_make(model->visible_gid),
		.segment_count = le32_make(model->segment_count),
		.tensor_count = le32_make(model->tensor_count),
		.lease_count = le32_make(model->lease_count),
		.holder_count = le16_make(holders),
		.name_bytes = le16_make((uint16_t)name_bytes),
		.field_count = le16_make((uint16_t)model->key.count),
		.field_bytes = le32_make((uint32_t)model->key.packed_bytes),
		.flags = le32_make(model->kept ? MODEL_KEPT : 0),
	};
	size_t before = reply->length;
	message_append(reply, &entry, sizeof(entry));
	list_holders(reply, model, holders);
	message_append(reply, model->name, name_bytes);
	message_append(reply, model->key.packed, model->key.packed_bytes);
	if (!reply->failed)
		return true;
	reply->failed = false;
	reply->length = before;
	return false;
}

int handle_list(struct conn *conn, struct request *request, struct message *reply, struct ipcc_error *err)
{
	const struct server *server = conn->server;
	struct list_request fixed;
	cursor_copy(&request->body, &fixed, sizeof(fixed));
	if (!cursor_finished(&request->body))
		return fail(err, IPCC_PROTOCOL, "LIST: its lengths do not add up");
	uint64_t after = le64_get(fixed.after_id);
	uint32_t count = 0, more = 0;
	size_t head = reply->length;
	struct list_reply body = {0};
	message_append(reply, &body, sizeof(body));
	const struct model *model;
	TAILQ_FOREACH(model, &server->registry.models, link)
	{
		if (model->id <= after || !policy_visible(&server->policy, conn_asker(conn), model))
			continue;
		if (!list_model(reply, model)) {
			more = 1;
			break;
		}
		count++;
	}
	body = (struct list_reply){.count = le32_make(count), .more = le32_make(more)};
	memcpy(reply->bytes + head, &body, sizeof(body));
	return IPCC_OK;
}
