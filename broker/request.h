/*
 * Requests: one handler per message type, found in a table with what the message must look like. A handler sees a message
 * whose length and fd count are right for its fixed part, from a peer that has said HELLO.
 */
#ifndef IPCC_BROKER_REQUEST_H
#define IPCC_BROKER_REQUEST_H

#include "broker/conn_message.h"

struct request {
	const uint8_t *bytes; /* the whole message, header included */
	size_t length;
	uint16_t type;
	uint32_t id;
	struct cursor body;
	struct wire_fds *fds;
	bool expired; /* it was parked and its time is over: answer now */
};

/* What a handler returns besides a code: the reply follows later, or was sent. */
#define REQUEST_LATER (-1)

/* On IPCC_OK the dispatcher sends `reply`; on a code, the error. IPCC_PROTOCOL ends the connection. */
typedef int request_handler(struct conn *conn, struct request *request, struct message *reply, struct ipcc_error *err);

/* Checks a received message and runs its handler. Leftover fds are closed. */
void request_dispatch(struct conn *conn, const uint8_t *bytes, size_t length, struct wire_fds *fds, bool expired);

request_handler handle_hello, handle_begin, handle_segments, handle_draft, handle_commit, handle_attach, handle_detach,
	handle_list, handle_evict, handle_ping, handle_stat;

#endif
