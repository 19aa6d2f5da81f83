/*
 * One message with its fds, sent and received on a SOCK_SEQPACKET socket without blocking: the part of the protocol that
 * both ends share.
 */
#ifndef IPCC_WIRE_H
#define IPCC_WIRE_H

#include "broker/protocol.h"
#include "manifest/error.h"
#include "manifest/key.h"

#include <stdbool.h>
#include <sys/types.h>

/* Fds that came with a message; each is owned here until wire_fd_take. */
struct wire_fds {
	int fds[PROTOCOL_MAX_FDS];
	unsigned count;
	bool truncated; /* the kernel dropped some: our fd table is full, or there were too many */
};

static inline int wire_fd_take(struct wire_fds *fds, unsigned i)
{
	int fd = fds->fds[i];
	fds->fds[i] = -1;
	return fd;
}
void wire_fds_close(struct wire_fds *fds);

/* Sends one message. 0, -EAGAIN when the peer does not read, or another negative errno. Never raises SIGPIPE. */
int wire_send(int socket, const void *message, size_t bytes, const int *fds, unsigned fd_count);

/* Receives one message of at most `capacity` bytes. Returns its length, 0 at the end of the connection, -EAGAIN,
 * -EMSGSIZE when it was longer, or another negative errno. All fds are CLOEXEC; `fds` is filled also on errors. */
ssize_t wire_receive(int socket, void *buffer, size_t capacity, struct wire_fds *fds);

/* A message under construction in a fixed buffer. After one overflow `failed` stays set. */
struct message {
	uint8_t bytes[PROTOCOL_MAX_MESSAGE];
	size_t length;
	bool failed;
};
void message_start(struct message *m, enum message_type type, uint32_t request, int code);
void message_append(struct message *m, const void *bytes, size_t length);
/* Writes the length into the header; IPCC_USAGE when it did not fit. */
int message_finish(struct message *m, struct ipcc_error *err);
/* A whole error reply. */
void message_error(struct message *m, enum message_type type, uint32_t request, const struct ipcc_error *error);
/* Reads an error reply's body into `err`; IPCC_PROTOCOL when it is malformed. Returns the code. */
int message_read_error(const void *body, size_t bytes, int code, struct ipcc_error *err);

/* A received selector in native form. */
struct selection {
	bool exact;
	uint32_t wait_ms;
	char text[PROTOCOL_MAX_TEXT + 1]; /* "" when not given */
	struct key key;			  /* count 0 when not given */
};
/* Reads from `c`; free with selection_fini. IPCC_PROTOCOL for bad lengths, IPCC_INVALID for a bad key. */
int selection_read(struct selection *s, struct cursor *c, struct ipcc_error *err);
void selection_fini(struct selection *s);
void selection_append(struct message *m, const char *text, const struct key *key, bool exact, uint32_t wait_ms);

#endif
