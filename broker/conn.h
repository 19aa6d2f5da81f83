/*
 * One connection: at most one request at a time, one reply unread, one claim, one lease.
 *
 * A connection is in one of these, which decides what the loop listens for and when it gives up:
 *	fresh    no HELLO yet: closed after hello_ms
 *	idle     nothing held: closed after idle_ms
 *	holding  a lease, a claim or a kept model: no time limit, the connection *is* that
 *	parked   a request waits for the registry to change, until its own deadline
 *	draft    its manifest is being validated
 *	writing  the reply does not fit into the socket: closed after write_ms; nothing is read
 * What goes over it is conn_message.h.
 */
#ifndef IPCC_BROKER_CONN_H
#define IPCC_BROKER_CONN_H

#include "broker/peer.h"
#include "broker/server.h"

struct draft;

/* A request that waits: its bytes, to be handled again from the start. */
struct parked {
	uint8_t *bytes; /* NULL: none */
	size_t length;
	uint64_t deadline_ms; /* UINT64_MAX: none */
	uint64_t model_id;    /* a model that it waits for, or 0 */
};

struct conn {
	TAILQ_ENTRY(conn) link;
	struct server *server;
	uint64_t number; /* of this broker process, never reused; the journal's name for it */
	int fd;
	struct peer peer;
	struct account *account;
	uint32_t events; /* what epoll watches for */
	bool greeted;
	bool may_hold_fds; /* unread messages may bring fds of the peer's choice, which closing the socket closes */
	bool closing;	   /* ends as soon as the outgoing message is sent */
	bool dead;	   /* closed, and freed at the end of the turn */
	TAILQ_ENTRY(conn) dead_link;

	uint64_t deadline_ms; /* UINT64_MAX: none */

	struct model *claim;   /* LOADING, published over this connection */
	struct model *kept;    /* whose memory this peer holds; never together with a claim */
	uint64_t committed_id; /* of the last commit, so that a repeated COMMIT is answered alike */
	uint64_t committed_generation;

	struct draft *draft;
	TAILQ_ENTRY(conn) draft_link;

	struct model *lease;
	uint64_t lease_since_ns; /* CLOCK_REALTIME */
	uint32_t lease_request;	 /* the ATTACH that took it, */
	uint64_t lease_asked;	 /* and a hash of what it asked for */
	TAILQ_ENTRY(conn) lease_link;
	uint32_t unread_fds; /* of attach replies that went out and may not be read yet */
	TAILQ_ENTRY(conn) unread_link;

	struct parked parked;

	uint8_t *outgoing; /* one message that the socket did not take yet, or NULL */
	size_t outgoing_bytes;
	bool outgoing_fds; /* with the fds of `lease` */
};

static inline struct asker conn_asker(const struct conn *conn)
{
	return (struct asker){.peer = &conn->peer, .socket = conn->fd};
}

/* Takes over `fd`, a socket that was just accepted; authenticates, charges, watches. On failure the peer is told why. */
void conn_accept(struct server *server, int fd);

/* Has the peer hung up, though its event was not handled yet? */
bool conn_is_over(const struct conn *conn);

/* epoll says so. */
void conn_event(struct conn *conn, uint32_t events);
/* The deadline has passed. */
void conn_expired(struct conn *conn);

/* Ends the connection at once: lease, claim, draft and everything parked go with it. */
void conn_close(struct conn *conn);
void conn_free(struct conn *conn);

/* Recomputes what to listen for and the deadline; after every change of state. */
void conn_update(struct conn *conn);

/* Leases. */
void conn_take_lease(struct conn *conn, struct model *model, uint32_t request);
void conn_drop_lease(struct conn *conn);

#endif
