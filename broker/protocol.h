/*
 * The broker's protocol, version 1: what travels over its SOCK_SEQPACKET socket.
 *
 * One datagram is one message: a header, a fixed part, then counted variable parts; SCM_RIGHTS fds belong to the message
 * that they came with. Everything is little-endian, unknown types, lengths that do not add up exactly, and missing or
 * surplus fds end the connection with a PROTOCOL error; nothing else does. One request is answered by one reply with the
 * same type and request id; a client may send HELLO and its next request back to back. Events have request id 0 and come
 * from the broker unasked.
 *
 * The state table, the limits and what is idempotent stand in ipc-cache-protocol(7).
 */
#ifndef IPCC_PROTOCOL_H
#define IPCC_PROTOCOL_H

#include "manifest/bytes.h"
#include "manifest/format.h"

#define PROTOCOL_MAGIC "ipcc"
#define PROTOCOL_MAJOR 1
#define PROTOCOL_MINOR 0

#define PROTOCOL_SOCKET_NAME "broker.sock"

#define PROTOCOL_MAX_MESSAGE  65536
#define PROTOCOL_MAX_FDS      253 /* the kernel's SCM_MAX_FD */
#define PROTOCOL_MAX_TEXT     512 /* a selector's text: a name, or a key prefix */
#define PROTOCOL_MAX_HOLDERS  64
#define PROTOCOL_WAIT_FOREVER UINT32_MAX

enum message_type {
	MESSAGE_HELLO = 1,
	MESSAGE_BEGIN = 2,    /* claim a key, promise segments */
	MESSAGE_SEGMENTS = 3, /* hand over segment fds */
	MESSAGE_DRAFT = 4,    /* hand over the manifest; answered when it is validated */
	MESSAGE_COMMIT = 5,   /* make the model attachable */
	MESSAGE_ATTACH = 6,
	MESSAGE_DETACH = 7,
	MESSAGE_LIST = 8,
	MESSAGE_EVICT = 9,
	MESSAGE_PING = 10,
	MESSAGE_STAT = 11,
	MESSAGE_TYPES, /* one more than the last request */

	MESSAGE_EVICTED = 64,  /* event: the model of this lease was dropped by force */
	MESSAGE_GOODBYE = 65,  /* event: the broker ends this connection; an error_reply says why */
	MESSAGE_LOST = 66,     /* event: the keeper of this lease's model ended, and its memory with it */
	MESSAGE_RELEASED = 67, /* event: the model that this connection keeps is gone; its memory may be freed */
};

struct message_header {
	le32 bytes; /* of the whole message */
	le16 type;  /* enum message_type */
	le16 reserved;
	le32 request; /* chosen by the client, not 0 */
	le32 code;    /* replies: enum ipcc_code; if not 0, the body is an error_reply. Requests: 0 */
};

/* Body of a reply with a code: four counted strings, UTF-8 without NUL. */
struct error_reply {
	le16 field_bytes;
	le16 expected_bytes;
	le16 got_bytes;
	le16 message_bytes;
	/* field, expected, got, message */
};

struct hello_request {
	uint8_t magic[4];
	le16 major;
	le16 minor;
	le32 features; /* none yet: 0 */
	le32 reserved;
};

struct hello_reply {
	le16 major;
	le16 minor;
	le32 features;
	uint8_t instance[16];
	le64 max_manifest_bytes;
	le32 max_segments;
	le32 reserved;
};

/* Which model: all given parts must hold. Followed by `text`, then the packed key fields of manifest/key.h. */
struct selector {
	le32 flags;
	le32 wait_ms;
	le16 text_bytes; /* a display name, or a prefix of the key's id */
	le16 field_count;
	le32 field_bytes;
};
enum selector_flags {
	SELECTOR_EXACT = 1, /* the key has no other fields */
};

/* Followed by segment_count le64 sizes, the display name, then the packed key. */
struct begin_request {
	le32 flags;
	le32 wait_ms; /* for another publisher of the same key */
	le32 segment_count;
	le32 visibility; /* enum ipcc_visibility */
	le32 visible_gid;
	le16 name_bytes;
	le16 field_count;
	le32 field_bytes;
	le32 reserved;
};
enum begin_flags {
	BEGIN_REPLACE = 1,
	BEGIN_KEPT = 2, /* the segments are legacy handles: no fds; this connection keeps the model from COMMIT on */
};
struct begin_reply {
	le64 id;
};

struct segments_request {
	le32 first;
	le32 count; /* fds with this message, in order */
};

struct draft_request {
	le64 bytes; /* of the memfd that comes with it */
};

struct commit_reply {
	le64 id;
	le64 generation;
};

/* attach_request is a selector. The reply brings the manifest's memfd and then the fds of all segments, in order, unless the
 * model is kept: its segments' handles stand in the manifest. */
struct attach_reply {
	le64 id;
	le64 generation;
	le64 manifest_bytes;
	le32 segment_count;
	le32 flags; /* enum model_flags */
};
enum model_flags {
	MODEL_KEPT = 1, /* its publisher is its keeper: it holds the memory, and the model ends with it */
};

struct list_request {
	le64 after_id; /* 0 to start; then the last id received */
};
/* Followed by `count` list_entry; more == 1: ask again after the last id. */
struct list_reply {
	le32 count;
	le32 more;
};
/* Each entry is followed by holder_count list_holder, the name, then the packed key. */
struct list_entry {
	le64 id;
	le64 generation;
	le64 created_ns;
	le64 bytes;
	le32 state; /* enum ipcc_model_state */
	le32 owner_uid;
	le32 publisher_pid;
	le32 visibility;
	le32 visible_gid;
	le32 segment_count;
	le32 tensor_count;
	le32 lease_count;
	le16 holder_count;
	le16 name_bytes;
	le16 field_count;
	le16 reserved;
	le32 field_bytes;
	le32 flags; /* enum model_flags */
};
struct list_holder {
	le32 pid;
	le32 uid;
	le64 since_ns;
};

/* Followed by a selector and what belongs to it. */
struct evict_request {
	le32 mode; /* enum ipcc_evict_mode */
	le32 reserved;
};
struct evict_reply {
	le64 id;
	le32 leases; /* that are left */
	le32 reserved;
};

struct stat_reply {
	uint8_t instance[16];
	uint8_t version[32]; /* NUL-padded */
	le32 pid;
	le32 uid;
	le64 uptime_ns;
	le64 connections;
	le64 models;
	le64 loading;
	le64 leases;
	le64 bytes;
	le64 fds;
	le64 fd_limit;
	le64 accepted;
	le64 refused;
	le64 attaches;
	le64 mismatches;
	le64 commits;
	le64 evictions;
};

_Static_assert(sizeof(struct message_header) == 16, "message_header is an ABI");
_Static_assert(sizeof(struct error_reply) == 8, "error_reply is an ABI");
_Static_assert(sizeof(struct hello_request) == 16, "hello_request is an ABI");
_Static_assert(sizeof(struct hello_reply) == 40, "hello_reply is an ABI");
_Static_assert(sizeof(struct selector) == 16, "selector is an ABI");
_Static_assert(sizeof(struct begin_request) == 32, "begin_request is an ABI");
_Static_assert(sizeof(struct attach_reply) == 32, "attach_reply is an ABI");
_Static_assert(sizeof(struct list_entry) == 80, "list_entry is an ABI");
_Static_assert(sizeof(struct list_holder) == 16, "list_holder is an ABI");
_Static_assert(sizeof(struct stat_reply) == 168, "stat_reply is an ABI");

#endif
