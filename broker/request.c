/* The table of requests, and what every message must satisfy; see request.h and protocol.h. */
#include "broker/request.h"

#include "bpf/probes.h"
#include "manifest/fail.h"

static const struct request_kind {
	request_handler *handle;
	const char *name;
	uint32_t fixed_bytes; /* the least that the body has */
	unsigned max_fds;     /* with fewer, the handler decides */
} kinds[MESSAGE_TYPES] = {
	[MESSAGE_HELLO] = {handle_hello, "HELLO", sizeof(struct hello_request), 0},
	[MESSAGE_BEGIN] = {handle_begin, "BEGIN", sizeof(struct begin_request), 0},
	[MESSAGE_SEGMENTS] = {handle_segments, "SEGMENTS", sizeof(struct segments_request), PROTOCOL_MAX_FDS},
	[MESSAGE_DRAFT] = {handle_draft, "DRAFT", sizeof(struct draft_request), 1},
	[MESSAGE_COMMIT] = {handle_commit, "COMMIT", 0, 0},
	[MESSAGE_ATTACH] = {handle_attach, "ATTACH", sizeof(struct selector), 0},
	[MESSAGE_DETACH] = {handle_detach, "DETACH", 0, 0},
	[MESSAGE_LIST] = {handle_list, "LIST", sizeof(struct list_request), 0},
	[MESSAGE_EVICT] = {handle_evict, "EVICT", sizeof(struct evict_request) + sizeof(struct selector), 0},
	[MESSAGE_PING] = {handle_ping, "PING", 0, 0},
	[MESSAGE_STAT] = {handle_stat, "STAT", 0, 0},
};

static int check(const struct conn *conn, const struct request *r, const struct message_header *header,
		 struct ipcc_error *err)
{
	if (r->length < sizeof(*header) || le32_get(header->bytes) != r->length)
		return fail(err, IPCC_PROTOCOL, "a message of %zu bytes whose header says %u", r->length,
			    r->length < sizeof(*header) ? 0 : le32_get(header->bytes));
	if (r->type >= MESSAGE_TYPES || kinds[r->type].handle == NULL)
		return fail(err, IPCC_PROTOCOL, "message type %u is not known to version %d.%d of the protocol",
			    r->type, PROTOCOL_MAJOR, PROTOCOL_MINOR);
	const struct request_kind *kind = &kinds[r->type];
	if (le16_get(header->reserved) != 0 || le32_get(header->code) != 0 || r->id == 0)
		return fail(err, IPCC_PROTOCOL, "%s: reserved fields must be 0, the request id must not", kind->name);
	if (!conn->greeted && r->type != MESSAGE_HELLO)
		return fail(err, IPCC_PROTOCOL, "%s came before HELLO", kind->name);
	if (r->length - sizeof(*header) < kind->fixed_bytes)
		return fail(err, IPCC_PROTOCOL, "%s: %zu bytes where at least %zu are due", kind->name, r->length,
			    sizeof(*header) + kind->fixed_bytes);
	if (r->fds->count > kind->max_fds)
		return fail(err, IPCC_PROTOCOL, "%s: %u file descriptors where at most %u are due", kind->name,
			    r->fds->count, kind->max_fds);
	return IPCC_OK;
}

void request_dispatch(struct conn *conn, const uint8_t *bytes, size_t length, struct wire_fds *fds, bool expired)
{
	struct ipcc_error err = {0};
	struct message reply;
	struct message_header header = {0};
	memcpy(&header, bytes, length < sizeof(header) ? length : sizeof(header));
	struct request request = {
		.bytes = bytes,
		.length = length,
		.type = le16_get(header.type),
		.id = le32_get(header.request),
		.fds = fds,
		.expired = expired,
	};
	if (conn->parked.bytes == NULL)
		PROBE_REQUEST_RECEIVED(conn->number, request.id, request.type);
	int rc = check(conn, &request, &header, &err);
	if (rc == IPCC_OK) {
		request.body = cursor_over(bytes + sizeof(header), length - sizeof(header));
		message_start(&reply, request.type, request.id, IPCC_OK);
		rc = kinds[request.type].handle(conn, &request, &reply, &err);
	}
	conn_close_received(conn, fds);
	if (rc == REQUEST_LATER || conn->dead)
		return;
	conn_unpark(conn);
	if (rc == IPCC_OK) {
		PROBE_REQUEST_REPLIED(conn->number, request.id, request.type, IPCC_OK);
		conn_send(conn, &reply, conn->lease != NULL && request.type == MESSAGE_ATTACH);
	} else {
		conn_send_error(conn, request.type, request.id, &err);
	}
}
