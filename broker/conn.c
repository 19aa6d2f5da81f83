/*
 * Receiving, sending, waiting and ending; see conn.h.
 *
 * Invariant: conn_close may be called at any point of handling a message; the memory stays until the end of the loop's
 * turn, and `dead` says that nothing more may be done with it.
 */
#include "broker/conn.h"

#include "bpf/probes.h"
#include "broker/draft.h"
#include "broker/lifecycle.h"
#include "broker/reaper.h"
#include "broker/request.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

static void log_refusal(const struct conn *conn, const struct ipcc_error *err)
{
	struct server *server = conn->server;
	uint64_t now = now_ms();
	server->refusals_unlogged++;
	if (now < server->refusals_logged_ms + 1000)
		return;
	server->log("refused uid %u pid %d: %s (%" PRIu64 " refused since the last such line)", conn->peer.uid,
		    conn->peer.pid, err->message, server->refusals_unlogged);
	server->refusals_logged_ms = now;
	server->refusals_unlogged = 0;
}

void conn_accept(struct server *server, int fd)
{
	struct ipcc_error err = {0};
	struct conn *conn = calloc(1, sizeof(*conn));
	if (conn == NULL) {
		fd_close(&fd);
		return;
	}
	*conn = (struct conn){.server = server,
			      .number = ++server->counters.accepted,
			      .fd = fd,
			      .may_hold_fds = !server->fds_refused,
			      .deadline_ms = UINT64_MAX};
	TAILQ_INSERT_TAIL(&server->conns, conn, link);
	PROBE_CONNECTION_ACCEPTED(conn->number);
	int rc = peer_read(fd, server->overflow_is_real, &conn->peer, &err);
	conn->peer.connection = conn->number;
	if (rc == IPCC_OK)
		rc = policy_connect(&server->policy, conn_asker(conn), &err);
	if (rc == IPCC_OK)
		rc = account_charge_connection(&server->accounts, conn->peer.uid,
					       policy_is_admin(&server->policy, conn_asker(conn)), &conn->account,
					       &err);
	struct epoll_event event = {.events = conn->events = EPOLLIN | EPOLLRDHUP, .data.ptr = conn};
	if (rc == IPCC_OK && epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
		rc = fail_errno(&err, errno, "the broker cannot watch the connection");
	if (rc != IPCC_OK) {
		log_refusal(conn, &err);
		conn_goodbye(conn, &err);
		return;
	}
	PROBE_CONNECTION_AUTHENTICATED(conn->number, conn->peer.pid, conn->peer.uid);
	conn->deadline_ms = now_ms() + server->config->hello_ms;
	server_note_deadline(server, conn->deadline_ms);
	/* The client has most likely sent its first request by now; saves a turn of the loop. */
	conn_event(conn, EPOLLIN);
}

static uint64_t wanted_deadline(const struct conn *conn)
{
	const struct config *config = conn->server->config;
	if (conn->outgoing != NULL)
		return now_ms() + config->write_ms;
	if (conn->parked.bytes != NULL)
		return conn->parked.deadline_ms;
	if (conn->draft != NULL || conn->claim != NULL || conn->kept != NULL || conn->lease != NULL)
		return UINT64_MAX;
	return conn->greeted ? now_ms() + config->idle_ms : conn->deadline_ms;
}

void conn_update(struct conn *conn)
{
	if (conn->dead)
		return;
	uint32_t events = EPOLLRDHUP;
	if (conn->outgoing != NULL)
		events |= EPOLLOUT;
	else if (!conn->closing)
		events |= EPOLLIN;
	if (events != conn->events) {
		struct epoll_event event = {.events = events, .data.ptr = conn};
		if (epoll_ctl(conn->server->epoll_fd, EPOLL_CTL_MOD, conn->fd, &event) != 0) {
			conn_close(conn);
			return;
		}
		conn->events = events;
	}
	conn->deadline_ms = wanted_deadline(conn);
	server_note_deadline(conn->server, conn->deadline_ms);
}

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

static void flush_outgoing(struct conn *conn)
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

static void receive(struct conn *conn)
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

bool conn_is_over(const struct conn *conn)
{
	struct pollfd socket = {.fd = conn->fd, .events = POLLRDHUP};
	return conn->dead || poll(&socket, 1, 0) != 0;
}

void conn_event(struct conn *conn, uint32_t events)
{
	if (conn->dead)
		return;
	if (events & EPOLLIN && conn->events & EPOLLIN)
		receive(conn);
	else if (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP))
		conn_close(conn);
	else if (events & EPOLLOUT && conn->outgoing != NULL)
		flush_outgoing(conn);
}

/* Bytes that were sent and the peer has not read. */
static int unread_bytes(const struct conn *conn)
{
	int bytes = 0;
	return ioctl(conn->fd, SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

static void forget_unread(struct conn *conn)
{
	if (conn->unread_fds > 0)
		TAILQ_REMOVE(&conn->server->unread, conn, unread_link);
	conn->unread_fds = 0;
}

bool conn_reply_unread(struct conn *conn)
{
	if (conn->unread_fds > 0 && unread_bytes(conn) == 0)
		forget_unread(conn);
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

void conn_expired(struct conn *conn)
{
	struct ipcc_error err;
	if (conn->outgoing != NULL) {
		conn_close(conn);
	} else if (conn->parked.bytes != NULL) {
		conn_retry(conn, true);
	} else {
		fail(&err, IPCC_TIMEOUT, "%s for too long; the broker closes the connection",
		     conn->greeted ? "nothing asked and nothing held" : "no greeting");
		conn_goodbye(conn, &err);
	}
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

void conn_take_lease(struct conn *conn, struct model *model, uint32_t request)
{
	conn->lease = model;
	conn->lease_since_ns = now_realtime_ns();
	conn->lease_request = request;
	TAILQ_INSERT_TAIL(&model->leases, conn, lease_link);
	model->lease_count++;
	conn->server->lease_count++;
	PROBE_LEASE_TAKEN(conn->number, model->id, conn->peer.pid, conn->peer.uid, model->name);
}

void conn_drop_lease(struct conn *conn)
{
	struct model *model = conn->lease;
	if (model == NULL)
		return;
	conn->lease = NULL;
	TAILQ_REMOVE(&model->leases, conn, lease_link);
	model->lease_count--;
	conn->server->lease_count--;
	PROBE_LEASE_ENDED(conn->number, model->id, conn->peer.pid, conn->peer.uid, model->name);
	/* A lease that cannot be struck from the journal is found ended when its connection is: nothing is lost. */
	journal_append(conn->server->journal,
		       (struct journal_record){.kind = le32_make(JOURNAL_LEASE_END), .conn = le64_make(conn->number)},
		       NULL);
	if (model->state == IPCC_MODEL_DRAINING && model->lease_count == 0)
		lifecycle_remove(conn->server, model);
}

/* What hung on the connection goes with it, and others are told. */
static void end(struct conn *conn)
{
	struct server *server = conn->server;
	PROBE_CONNECTION_CLOSED(conn->number);
	if (conn->draft != NULL)
		draft_cancel(conn);
	forget_unread(conn);
	if (conn->claim != NULL)
		lifecycle_remove(server, conn->claim);
	conn_drop_lease(conn);
	if (conn->kept != NULL)
		lifecycle_lose(server, conn->kept);
	conn_unpark(conn);
	free(conn->outgoing);
	conn->outgoing = NULL;
	if (conn->account != NULL)
		account_release_connection(&server->accounts, conn->account);
	/* A parked copy of the socket would keep the connection open: say that it is over, then close. */
	shutdown(conn->fd, SHUT_RDWR);
	if (conn->may_hold_fds) {
		epoll_ctl(server->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL); /* it stays open until it is its turn */
		reaper_close_foreign(&conn->fd, conn->peer.uid);
	}
	fd_close(&conn->fd);
	TAILQ_INSERT_TAIL(&server->dead, conn, dead_link);
}

/* Whoever is told of an end may end of it, and so on: the peers decide how long such a chain is, so it is a queue and no
 * recursion. */
void conn_close(struct conn *conn)
{
	struct server *server = conn->server;
	if (conn->dead)
		return;
	conn->dead = true;
	TAILQ_INSERT_TAIL(&server->ending, conn, dead_link);
	if (server->is_ending)
		return;
	server->is_ending = true;
	while ((conn = TAILQ_FIRST(&server->ending)) != NULL) {
		TAILQ_REMOVE(&server->ending, conn, dead_link);
		end(conn);
	}
	server->is_ending = false;
}

void conn_free(struct conn *conn)
{
	free(conn);
}
