/*
 * What goes over a connection: requests, which are handled or parked, and replies, which are sent or kept.
 *
 * Whatever comes while a request is parked or a draft validated ends the connection: unread, it could be the connection's
 * own socket, sent over itself, which would then never close.
 */
#ifndef IPCC_BROKER_CONN_MESSAGE_H
#define IPCC_BROKER_CONN_MESSAGE_H

#include "broker/conn.h"
#include "broker/link/wire.h"

struct request;

/* There is a message: handle it, or end the connection if it must not be. */
void conn_receive(struct conn *conn);
/* Closes what a peer sent and nobody took, in the reaper. */
void conn_close_received(const struct conn *conn, struct wire_fds *fds);

/* Sends, or keeps for later; `with_fds`: the fds of the lease go along. */
void conn_send(struct conn *conn, struct message *message, bool with_fds);
/* Sends an error reply, and ends the connection if it is a PROTOCOL one. */
void conn_send_error(struct conn *conn, uint16_t type, uint32_t request, const struct ipcc_error *error);
/* Sends a GOODBYE with the reason and ends the connection. */
void conn_goodbye(struct conn *conn, const struct ipcc_error *error);
/* The socket has room: send what was kept. */
void conn_flush(struct conn *conn);

/* Was an attach reply sent over this connection that is not read yet? */
bool conn_reply_unread(struct conn *conn);
/* fds in attach replies to `uid` that are not read yet. The kernel counts them against the broker's user. */
uint64_t conn_unread_fds(struct server *server, uid_t uid);
/* The connection ends, and with it what was not read. */
void conn_forget_unread(struct conn *conn);

/* Keeps a request for later: REQUEST_LATER, or IPCC_NO_MEMORY. `wait_ms` counts from the first time. */
int conn_park(struct conn *conn, const struct request *request, uint32_t wait_ms, uint64_t model_id,
	      struct ipcc_error *err);
void conn_unpark(struct conn *conn);
/* The registry has changed, or the request's time is over: handle the parked request again. */
void conn_retry(struct conn *conn, bool expired);

#endif
