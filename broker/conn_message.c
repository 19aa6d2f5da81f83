/*
 * The messages of a connection: received, sent, kept until there is room or an answer; see conn_message.h.
 *
 * Invariant: `unread_fds` is not 0 exactly while the connection is in the server's list of unread replies.
 */
#include "broker/conn_message.h"

#include "bpf/probes.h"
#include "broker/reaper.h"
#include "broker/request.h"
#include "manifest/fail.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

/* Sends with the fds of the lease: the manifest, then the segments. */
static int send_with_fds(struct conn *conn, const uint8_t *bytes, size_t length)
{
	const struct model *model = conn->lease;
	int fds[PROTOCOL_MAX_FDS];
	fds[0] = model->manifest_fd;
	for (uint32_t i = 0; i < model->fd_count; i++)
		fds[i + 1] = model->segments[i].fd;
	return wire_send(conn->fd, bytes, length, fds, model->fd_count + 1);
}

/* 0 when the socket took it, -EAGAIN when it is full, another error when the connection is over. */
static int send_now(struct conn *conn, const uint8_t *bytes, size_t length, bool with_fds)
{
	if (!with_fds)
		return wire_send(conn->fd, bytes, length, NULL, 0);
	int rc = send_with_fds(conn, bytes, length);
	if (rc == 0) {
		if (conn->unread_fds == 0)
			TAILQ_INSERT_TAIL(&conn->server->unread, conn, unread_link);
		conn->unread_fds += conn->lease->fd_count + 1;
	}
	return rc;
}

void conn_send(struct conn *conn, struct message *message, bool with_fds)
{
	if (conn->dead)
		return;
	message_finish(message, NULL);
	int rc = conn->outgoing != NULL ? -EBUSY : send_now(conn, message->bytes, message->length, with_fds);
	if (rc == -ETOOMANYREFS) {
		struct ipcc_error err;
		fail(&err, IPCC_REFUSED,
		     "too many of the broker's file descriptors are in replies that their clients have not read; try "
		     "again in a "
		     "moment, or raise its LimitNOFILE");
		struct message_header header;
		memcpy(&header, message->bytes, sizeof(header));
		conn_drop_lease(conn);
		with_fds = false;
		message_error(message, le16_get(header.type), le32_get(header.request), &err);
		rc = send_now(conn, message->bytes, message->length, false);
	}
	if (rc == -EAGAIN && (conn->outgoing = malloc(message->length)) != NULL) {
		memcpy(conn->outgoing, message->bytes, message->length);
		conn->outgoing_bytes = message->length;
		conn->outgoing_fds = with_fds;
	} else if (rc != 0) {
		conn_close(conn);
	}
}

void conn_send_error(struct conn *conn, uint16_t type, uint32_t request, const struct ipcc_error *error)
{
	struct message message;
	conn->server->counters.refused++;
	conn->server->counters.mismatches += error->code == IPCC_MISMATCH;
	if (error->code == IPCC_MISMATCH)
		PROBE_KEY_MISMATCHED(conn->number, request, error->field, error->expected, error->got);
	PROBE_REQUEST_REPLIED(conn->number, request, type, error->code);
	message_error(&message, type, request, error);
	conn_send(conn, &message, false);
	if (error->code != IPCC_PROTOCOL || conn->dead)
		return;
	if (conn->outgoing == NULL)
		conn_close(conn);
	conn->closing = true;
}

void conn_goodbye(struct conn *conn, const struct ipcc_error *error)
{
	struct message message;
	conn->server->counters.refused++;
	PROBE_CONNECTION_REFUSED(conn->number, conn->peer.pid, conn->peer.uid, error->code, error->message);
	message_error(&message, MESSAGE_GOODBYE, 0, error);
	wire_send(conn->fd, message.bytes, message.length, NULL, 0); /* as a favour: it ends either way */
	conn_close(conn);
}

void conn_flush(struct conn *conn)
{
	if (conn->outgoing_fds && (conn->lease == NULL || conn->lease->dropped)) {
		conn_close(conn); /* evicted before the reply could be sent: there is nothing to hand over any more */
		return;
	}
	int rc = send_now(conn, conn->outgoing, conn->outgoing_bytes, conn->outgoing_fds);
	if (rc == -EAGAIN)
		return;
	free(conn->outgoing);
	conn->outgoing = NULL;
	if (rc != 0 || conn->closing)
		conn_close(conn);
	else
		conn_update(conn);
}

void conn_close_received(const struct conn *conn, struct wire_fds *fds)
{
	for (unsigned i = 0; i < fds->count; i++)
		reaper_close_foreign(&fds->fds[i], conn->peer.uid);
	fds->count = 0;
}

void conn_receive(struct conn *conn)
{
	/* One for all connections: a message is handled, or copied, before the next one is received. */
	static uint8_t buffer[PROTOCOL_MAX_MESSAGE];
	struct wire_fds fds;
	struct ipcc_error err;
	ssize_t length = wire_receive(conn->fd, buffer, sizeof(buffer), &fds);
	if (length == -EAGAIN)
		return;
	if (length > 0 && !fds.truncated && conn->parked.bytes == NULL && conn->draft == NULL) {
		request_dispatch(conn, buffer, (size_t)length, &fds, false);
		conn_update(conn);
		return;
	}
	conn_close_received(conn, &fds);
	if (length > 0 && !fds.truncated) {
		fail(&err, IPCC_PROTOCOL, "a message came before the reply to the last request");
		conn_goodbye(conn, &err);
	} else if (length > 0 || length == -EMSGSIZE) {
		fail(&err, IPCC_PROTOCOL,
		     length > 0 ? "the message's file descriptors were cut off: more than %d, or the broker's table is "
				  "full"
				: "a message is longer than %d bytes",
		     length > 0 ? PROTOCOL_MAX_FDS : PROTOCOL_MAX_MESSAGE);
		conn_goodbye(conn, &err);
	} else {
		conn_close(conn);
	}
}

/* Bytes that were sent and the peer has not read. */
static int unread_bytes(const struct conn *conn)
{
	int bytes = 0;
	return ioctl(conn->fd, SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

void conn_forget_unread(struct conn *conn)
{
	if (conn->unread_fds > 0)
		TAILQ_REMOVE(&conn->server->unread, conn, unread_link);
	conn->unread_fds = 0;
}

bool conn_reply_unread(struct conn *conn)
{
	if (conn->unread_fds > 0 && unread_bytes(conn) == 0)
		conn_forget_unread(conn);
	return conn->unread_fds > 0;
}

uint64_t conn_unread_fds(struct server *server, uid_t uid)
{
	uint64_t sum = 0;
	struct conn *conn, *next;
	for (conn = TAILQ_FIRST(&server->unread); conn != NULL; conn = next) {
		next = TAILQ_NEXT(conn, unread_link);
		if (conn_reply_unread(conn) && conn->peer.uid == uid)
			sum += conn->unread_fds;
	}
	return sum;
}

int conn_park(struct conn *conn, const struct request *request, uint32_t wait_ms, uint64_t model_id,
	      struct ipcc_error *err)
{
	if (conn->parked.bytes != NULL) { /* tried again, and waits on */
		conn->parked.model_id = model_id;
		return REQUEST_LATER;
	}
	uint8_t *copy = malloc(request->length);
	if (copy == NULL)
		return fail_errno(err, ENOMEM, "the broker cannot keep the request until it can be answered");
	memcpy(copy, request->bytes, request->length);
	conn->parked = (struct parked){
		.bytes = copy,
		.length = request->length,
		.deadline_ms = wait_ms == PROTOCOL_WAIT_FOREVER ? UINT64_MAX : now_ms() + wait_ms,
		.model_id = model_id,
	};
	PROBE_REQUEST_PARKED(conn->number, request->id, model_id, wait_ms);
	return REQUEST_LATER;
}

void conn_unpark(struct conn *conn)
{
	free(conn->parked.bytes);
	conn->parked = (struct parked){0};
}

void conn_retry(struct conn *conn, bool expired)
{
	/* The request's bytes stay while it is handled; its handler parks it again by leaving them there. */
	struct parked parked = conn->parked;
	struct wire_fds none = {.count = 0};
	request_dispatch(conn, parked.bytes, parked.length, &none, expired);
	conn_update(conn);
}
