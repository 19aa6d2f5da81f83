/*
 * Messages and their fds on a SOCK_SEQPACKET socket; see wire.h and protocol.h.
 *
 * Invariant: whatever fds arrive are owned by a struct wire_fds at once, so that no path can lose one.
 */
#include "broker/link/wire.h"

#include "manifest/fail.h"
#include "manifest/fd.h"
#include "manifest/utf8.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Room for exactly the allowed number; the kernel marks a message with more as truncated (and itself sends no more). */
union fd_control {
	char bytes[CMSG_SPACE(PROTOCOL_MAX_FDS * sizeof(int))];
	struct cmsghdr align;
};

void wire_fds_close(struct wire_fds *fds)
{
	for (unsigned i = 0; i < fds->count; i++)
		fd_close(&fds->fds[i]);
	fds->count = 0;
}

int wire_send(int socket, const void *message, size_t bytes, const int *fds, unsigned fd_count)
{
	union fd_control control;
	struct iovec part = {.iov_base = (void *)message, .iov_len = bytes};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
	if (fd_count > 0) {
		header.msg_control = control.bytes;
		header.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
		memset(control.bytes, 0, header.msg_controllen);
		struct cmsghdr *c = CMSG_FIRSTHDR(&header);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
		memcpy(CMSG_DATA(c), fds, fd_count * sizeof(int));
	}
	ssize_t sent;
	do {
		sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
	} while (sent < 0 && errno == EINTR);
	return sent < 0 ? -errno : 0;
}

static void collect_fds(struct msghdr *header, struct wire_fds *fds)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c != NULL; c = CMSG_NXTHDR(header, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		unsigned count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(fds->fds, CMSG_DATA(c), count * sizeof(int));
		fds->count = count;
	}
}

ssize_t wire_receive(int socket, void *buffer, size_t capacity, struct wire_fds *fds)
{
	union fd_control control;
	struct iovec part = {.iov_base = buffer, .iov_len = capacity};
	struct msghdr header = {.msg_iov = &part,
				.msg_iovlen = 1,
				.msg_control = control.bytes,
				.msg_controllen = sizeof(control.bytes)};
	fds->count = 0;
	fds->truncated = false;
	ssize_t received;
	unsigned resets = 0;
	/* A peer that closed with something of ours unread leaves ECONNRESET once, before what it sent last. */
	do {
		received = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	} while (received < 0 && (errno == EINTR || (errno == ECONNRESET && resets++ == 0)));
	if (received < 0)
		return -errno;
	collect_fds(&header, fds);
	fds->truncated = (header.msg_flags & MSG_CTRUNC) != 0;
	return (header.msg_flags & MSG_TRUNC) != 0 ? -EMSGSIZE : received;
}

void message_start(struct message *m, enum message_type type, uint32_t request, int code)
{
	struct message_header header = {
		.type = le16_make(type), .request = le32_make(request), .code = le32_make((uint32_t)code)};
	m->length = 0;
	m->failed = false;
	message_append(m, &header, sizeof(header));
}

void message_append(struct message *m, const void *bytes, size_t length)
{
	if (m->failed || length > sizeof(m->bytes) - m->length) {
		m->failed = true;
		return;
	}
	if (length > 0)
		memcpy(m->bytes + m->length, bytes, length);
	m->length += length;
}

int message_finish(struct message *m, struct ipcc_error *err)
{
	if (m->failed)
		return fail(err, IPCC_USAGE, "a request longer than %d bytes; use fewer or shorter key fields",
			    PROTOCOL_MAX_MESSAGE);
	le32 bytes = le32_make((uint32_t)m->length);
	memcpy(m->bytes, &bytes, sizeof(bytes));
	return IPCC_OK;
}

void message_error(struct message *m, enum message_type type, uint32_t request, const struct ipcc_error *error)
{
	size_t field = strlen(error->field), expected = strlen(error->expected), got = strlen(error->got);
	size_t text = strlen(error->message);
	struct error_reply body = {.field_bytes = le16_make((uint16_t)field),
				   .expected_bytes = le16_make((uint16_t)expected),
				   .got_bytes = le16_make((uint16_t)got),
				   .message_bytes = le16_make((uint16_t)text)};
	message_start(m, type, request, error->code);
	message_append(m, &body, sizeof(body));
	message_append(m, error->field, field);
	message_append(m, error->expected, expected);
	message_append(m, error->got, got);
	message_append(m, error->message, text);
	message_finish(m, NULL); /* four bounded strings always fit */
}

/* A counted string into a fixed buffer; longer ones are cut, control characters are made harmless. */
static void read_text(struct cursor *c, size_t bytes, char *to, size_t capacity)
{
	const char *from = cursor_take(c, bytes);
	size_t kept = from == NULL ? 0 : bytes < capacity ? bytes : capacity - 1;
	if (kept > 0)
		memcpy(to, from, kept);
	to[kept] = '\0';
	utf8_clean(to);
}

int message_read_error(const void *body, size_t bytes, int code, struct ipcc_error *err)
{
	struct ipcc_error read = {.code = code};
	struct cursor c = cursor_over(body, bytes);
	struct error_reply lengths;
	cursor_copy(&c, &lengths, sizeof(lengths));
	read_text(&c, le16_get(lengths.field_bytes), read.field, sizeof(read.field));
	read_text(&c, le16_get(lengths.expected_bytes), read.expected, sizeof(read.expected));
	read_text(&c, le16_get(lengths.got_bytes), read.got, sizeof(read.got));
	read_text(&c, le16_get(lengths.message_bytes), read.message, sizeof(read.message));
	if (!cursor_finished(&c) || code <= 0)
		return fail(err, IPCC_PROTOCOL, "the broker sent a malformed error reply");
	if (err != NULL)
		*err = read;
	return code;
}

int selection_read(struct selection *s, struct cursor *c, struct ipcc_error *err)
{
	struct selector fixed;
	cursor_copy(c, &fixed, sizeof(fixed));
	uint32_t flags = le32_get(fixed.flags), field_bytes = le32_get(fixed.field_bytes);
	uint16_t text_bytes = le16_get(fixed.text_bytes);
	const char *text = cursor_take(c, text_bytes);
	const void *packed = cursor_take(c, field_bytes);
	if (c->failed || text_bytes > PROTOCOL_MAX_TEXT || (flags & ~(uint32_t)SELECTOR_EXACT) != 0 ||
	    (text_bytes > 0 && memchr(text, '\0', text_bytes) != NULL))
		return fail(err, IPCC_PROTOCOL, "malformed selector");
	struct selection read = {.exact = (flags & SELECTOR_EXACT) != 0, .wait_ms = le32_get(fixed.wait_ms)};
	int rc = key_init_packed(&read.key, packed, field_bytes, le16_get(fixed.field_count), err);
	if (rc != IPCC_OK)
		return rc;
	if (text_bytes > 0)
		memcpy(read.text, text, text_bytes);
	*s = read;
	return IPCC_OK;
}

void selection_fini(struct selection *s)
{
	key_fini(&s->key);
}

void selection_append(struct message *m, const char *text, const struct key *key, bool exact, uint32_t wait_ms)
{
	size_t text_bytes = text == NULL ? 0 : strlen(text);
	if (text_bytes > PROTOCOL_MAX_TEXT) {
		m->failed = true;
		return;
	}
	struct selector fixed = {.flags = le32_make(exact ? SELECTOR_EXACT : 0),
				 .wait_ms = le32_make(wait_ms),
				 .text_bytes = le16_make((uint16_t)text_bytes),
				 .field_count = le16_make((uint16_t)key->count),
				 .field_bytes = le32_make((uint32_t)key->packed_bytes)};
	message_append(m, &fixed, sizeof(fixed));
	message_append(m, text, text_bytes);
	message_append(m, key->packed, key->packed_bytes);
}
