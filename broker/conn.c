/*
 * The life of a connection: accepted, watched, timed, leased, ended; see conn.h.
 *
 * Invariant: conn_close may be called at any point of handling a message; the memory stays until the end of the loop's
 * turn, and `dead` says that nothing more may be done with it.
 */
#include "broker/conn.h"

#include "bpf/probes.h"
#include "broker/conn_message.h"
#include "broker/draft.h"
#include "broker/lifecycle.h"
#include "broker/reaper.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
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
		conn_receive(conn);
	else if (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP))
		conn_close(conn);
	else if (events & EPOLLOUT && conn->outgoing != NULL)
		conn_flush(conn);
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
	conn_forget_unread(conn);
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
