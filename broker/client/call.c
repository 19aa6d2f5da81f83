/*
 * One request and its reply, with a deadline and a way to cancel; see client.h.
 *
 * Invariant: after anything that leaves request and reply out of step (a time-out, a cancellation, a malformed reply) the
 * client is `broken`, and every later call says so: a late reply can never be taken for another one's.
 */
#include "broker/client/client.h"

#include "bpf/probes.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <poll.h>
#include <time.h>

static int64_t monotonic_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

uint32_t wire_wait(int wait_ms)
{
	return wait_ms < 0 ? PROTOCOL_WAIT_FOREVER : (uint32_t)wait_ms;
}

static int64_t deadline_after(int timeout_ms, int wait_ms)
{
	return timeout_ms < 0 || wait_ms < 0 ? INT64_MAX : monotonic_ms() + timeout_ms + wait_ms;
}

/* Until the socket is ready for `events`. */
static int wait_ready(struct ipcc_client *client, short events, int64_t deadline_ms, struct ipcc_error *err)
{
	struct pollfd fds[2] = {{.fd = client->socket_fd, .events = events},
				{.fd = client->cancel_fd, .events = POLLIN}};
	for (;;) {
		int64_t left = deadline_ms == INT64_MAX ? -1 : deadline_ms - monotonic_ms();
		if (left < 0 && deadline_ms != INT64_MAX)
			return fail(err, IPCC_TIMEOUT,
				    "the broker did not answer in time; it is stopped or overloaded");
		int ready = poll(fds, 2, left > INT32_MAX ? INT32_MAX : (int)left);
		if (ready < 0 && errno != EINTR)
			return fail_errno(err, errno, "poll");
		if (fds[1].revents != 0)
			return fail(err, IPCC_CANCELED, "canceled");
		if (fds[0].revents != 0)
			return IPCC_OK;
	}
}

void call_start(struct call *call, enum message_type type)
{
	call->fds.count = 0;
	/* The id is set when the lock is held: threads may prepare requests at the same time. */
	message_start(&call->message, type, 0, 0);
}

static void set_request(struct message *m, uint32_t request)
{
	le32 id = le32_make(request);
	memcpy(m->bytes + offsetof(struct message_header, request), &id, sizeof(id));
}

static int send_request(struct ipcc_client *client, struct call *call, const int *fds, unsigned fd_count,
			int64_t deadline_ms, struct ipcc_error *err)
{
	for (;;) {
		int rc = wire_send(client->socket_fd, call->message.bytes, call->message.length, fds, fd_count);
		if (rc == 0)
			return IPCC_OK;
		if (rc == -ETOOMANYREFS)
			return fail(
				err, IPCC_REFUSED,
				"too many file descriptors of yours are in flight; raise RLIMIT_NOFILE (ulimit -n)");
		/* The broker may have said why before it hung up: that is read instead. */
		if (rc == -EPIPE || rc == -ECONNRESET)
			return IPCC_OK;
		if (rc != -EAGAIN)
			return fail_errno(err, -rc, "cannot send to the broker");
		rc = wait_ready(client, POLLOUT, deadline_ms, err);
		if (rc != IPCC_OK)
			return rc;
	}
}

static int broker_gone(struct ipcc_error *err)
{
	return fail(err, IPCC_NO_BROKER, "the broker ended the connection; see its log, then connect again");
}

static atomic_bool *event_of(struct ipcc_client *client, enum message_type type)
{
	switch (type) {
	case MESSAGE_EVICTED:
		return &client->evicted;
	case MESSAGE_LOST:
		return &client->lost;
	case MESSAGE_RELEASED:
		return &client->released;
	default:
		return NULL;
	}
}

/* The next message, events noted and passed over. */
static int receive_reply(struct ipcc_client *client, struct call *call, struct message_header *header,
			 int64_t deadline_ms, struct ipcc_error *err)
{
	for (;;) {
		ssize_t length =
			wire_receive(client->socket_fd, call->message.bytes, sizeof(call->message.bytes), &call->fds);
		if (length == -EAGAIN) {
			int rc = wait_ready(client, POLLIN, deadline_ms, err);
			if (rc != IPCC_OK)
				return rc;
			continue;
		}
		if (length == 0 || length == -ECONNRESET)
			return broker_gone(err);
		if (length < 0 && length != -EMSGSIZE)
			return fail_errno(err, (int)-length, "cannot receive from the broker");
		if (call->fds.truncated)
			return fail(err, IPCC_REFUSED,
				    "the model's file descriptors do not fit into this process; raise RLIMIT_NOFILE "
				    "(ulimit -n)");
		if (length < (ssize_t)sizeof(*header))
			return fail(err, IPCC_PROTOCOL, "the broker sent a malformed message");
		memcpy(header, call->message.bytes, sizeof(*header));
		call->message.length = (size_t)length;
		if (le32_get(header->bytes) != length)
			return fail(err, IPCC_PROTOCOL, "the broker sent a malformed message");
		atomic_bool *event = event_of(client, le16_get(header->type));
		if (event == NULL)
			return IPCC_OK;
		*event = true;
		wire_fds_close(&call->fds);
	}
}

static int read_reply(struct call *call, const struct message_header *header, enum message_type type, uint32_t request,
		      struct ipcc_error *err)
{
	const uint8_t *body = call->message.bytes + sizeof(*header);
	size_t bytes = call->message.length - sizeof(*header);
	int code = (int)le32_get(header->code);
	if (le16_get(header->type) == MESSAGE_GOODBYE)
		return message_read_error(body, bytes, code, err);
	if (le16_get(header->type) != type || le32_get(header->request) != request)
		return fail(err, IPCC_PROTOCOL, "the broker answered another request");
	if (code != IPCC_OK)
		return message_read_error(body, bytes, code, err);
	call->body = cursor_over(body, bytes);
	return IPCC_OK;
}

static int run_locked(struct call *call, struct ipcc_client *client, const int *fds, unsigned fd_count, int wait_ms,
		      struct ipcc_error *err)
{
	struct message_header header;
	memcpy(&header, call->message.bytes, sizeof(header));
	enum message_type type = le16_get(header.type);
	if (client->canceled)
		return fail(err, IPCC_CANCELED, "canceled");
	if (client->broken)
		return fail(err, IPCC_NO_BROKER,
			    "this connection is over (an earlier call failed, or was canceled); connect again");
	int64_t deadline_ms = deadline_after(client->timeout_ms, wait_ms);
	uint32_t request = ++client->last_request;
	set_request(&call->message, request);
	int rc = message_finish(&call->message, err);
	if (rc != IPCC_OK)
		return rc; /* nothing was sent */
	rc = send_request(client, call, fds, fd_count, deadline_ms, err);
	if (rc == IPCC_REFUSED)
		return rc;
	if (rc == IPCC_OK)
		rc = receive_reply(client, call, &header, deadline_ms, err);
	if (rc != IPCC_OK) {
		client->broken = true;
		return rc;
	}
	rc = read_reply(call, &header, type, request, err);
	PROBE_REPLY_RECEIVED(client, request, type, rc);
	if (rc == IPCC_PROTOCOL || le16_get(header.type) == MESSAGE_GOODBYE)
		client->broken = true;
	return rc;
}

int call_run(struct call *call, struct ipcc_client *client, const int *fds, unsigned fd_count, int wait_ms,
	     struct ipcc_error *err)
{
	pthread_mutex_lock(&client->lock);
	int rc = run_locked(call, client, fds, fd_count, wait_ms, err);
	pthread_mutex_unlock(&client->lock);
	return rc;
}

void call_poll(struct ipcc_client *client)
{
	struct call call;
	struct message_header header;
	pthread_mutex_lock(&client->lock);
	call.fds.count = 0;
	/* A deadline in the past: what is not there already is not waited for. */
	if (!client->broken) {
		int rc = receive_reply(client, &call, &header, 0, NULL);
		if (rc != IPCC_TIMEOUT)
			client->broken = true; /* a goodbye, the end, or something that nobody asked for */
	}
	pthread_mutex_unlock(&client->lock);
	call_end(&call);
}

int call_wait(struct ipcc_client *client, struct ipcc_error *err)
{
	return wait_ready(client, POLLIN, INT64_MAX, err);
}

void call_end(struct call *call)
{
	wire_fds_close(&call->fds);
}

int call_finished(const struct call *call, unsigned fds_expected, struct ipcc_error *err)
{
	if (cursor_finished(&call->body) && call->fds.count == fds_expected)
		return IPCC_OK;
	return fail(err, IPCC_PROTOCOL, "the broker's reply has the wrong length or %u file descriptors instead of %u",
		    call->fds.count, fds_expected);
}
