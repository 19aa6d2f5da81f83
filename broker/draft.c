/*
 * Copy, validate, compare, stamp, seal; see draft.h.
 *
 * Invariant: what is validated is the broker's own copy, which nobody else can change, and exactly that copy is handed
 * out. The publisher's memfd is sealed too (memfd_check), but only so that reading it cannot block.
 */
#include "broker/draft.h"

#include "bpf/probes.h"
#include "broker/conn_message.h"
#include "broker/reaper.h"
#include "broker/segment.h"
#include "manifest/fail.h"
#include "manifest/fd.h"
#include "manifest/validate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Copied, or hashed, per turn: a third of a millisecond where a page costs a microsecond. */
#define SLICE_BYTES ((uint64_t)256 << 10)

struct draft {
	enum { DRAFT_COPY, DRAFT_VALIDATE, DRAFT_STAMP, DRAFT_SEAL, DRAFT_TAKEN } phase;
	uint32_t request;
	int source_fd; /* the publisher's */
	int copy_fd;   /* ours */
	uint64_t bytes;
	uint64_t done; /* of the phase */
	const uint8_t *map;
	struct validator *validator;
	struct checksum *checksum;
	struct manifest_header header; /* stamped */
	uint32_t tensor_count;
};

static void draft_unmap(struct draft *draft)
{
	validator_free(draft->validator);
	draft->validator = NULL;
	if (draft->map != NULL)
		munmap((void *)draft->map, draft->bytes);
	draft->map = NULL;
}

void draft_cancel(struct conn *conn)
{
	struct draft *draft = conn->draft;
	conn->draft = NULL;
	if (draft->phase != DRAFT_TAKEN)
		account_release_manifest(conn->claim->account, draft->bytes);
	if (conn->server->drafting == conn)
		conn->server->drafting = NULL;
	TAILQ_REMOVE(&conn->server->drafts, conn, draft_link);
	draft_unmap(draft);
	checksum_free(draft->checksum);
	reaper_close_memory(&draft->source_fd);
	reaper_close_memory(&draft->copy_fd);
	free(draft);
}

int draft_start(struct conn *conn, int *fd, uint64_t bytes, uint32_t request, struct ipcc_error *err)
{
	struct memfd_facts facts;
	int rc = memfd_check(*fd, "the draft", &facts, err);
	if (rc != IPCC_OK)
		return rc;
	if (facts.bytes != bytes || bytes < sizeof(struct manifest_header) || bytes > MANIFEST_MAX_BYTES)
		return fail(err, IPCC_INVALID,
			    "the draft has %llu bytes and was announced with %llu; a manifest has %zu to %llu",
			    (unsigned long long)facts.bytes, (unsigned long long)bytes, sizeof(struct manifest_header),
			    (unsigned long long)MANIFEST_MAX_BYTES);
	rc = account_charge_manifest(&conn->server->accounts, conn->claim->account, bytes, err);
	if (rc != IPCC_OK)
		return rc;
	struct draft *draft = calloc(1, sizeof(*draft));
	if (draft == NULL)
		account_release_manifest(conn->claim->account, bytes);
	if (draft == NULL)
		return fail_errno(err, ENOMEM, "the broker cannot take the draft");
	*draft = (struct draft){.request = request, .source_fd = fd_take(fd), .copy_fd = -1, .bytes = bytes};
	conn->draft = draft;
	TAILQ_INSERT_TAIL(&conn->server->drafts, conn, draft_link);
	return IPCC_OK;
}

/* Grows as it is written: allocating 64 MiB at once would take longer than a turn may. */
static int step_copy(struct draft *draft, struct ipcc_error *err)
{
	static uint8_t slice[SLICE_BYTES];
	uint64_t left = draft->bytes - draft->done, part = left < SLICE_BYTES ? left : SLICE_BYTES;
	if (draft->copy_fd < 0)
		draft->copy_fd = memfd_create("ipc-cache-manifest", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (draft->copy_fd < 0)
		return fail_errno(err, errno, "the broker cannot copy the draft");
	int rc = fd_read_exact(draft->source_fd, slice, part, draft->done);
	if (rc == 0)
		rc = fd_write_exact(draft->copy_fd, slice, part, draft->done);
	if (rc < 0)
		return fail_errno(err, -rc, "the broker cannot copy the draft");
	draft->done += part;
	if (draft->done < draft->bytes)
		return IPCC_OK;
	reaper_close_memory(&draft->source_fd);
	/* Whatever gets at it, a mapping of it can no longer lose its pages. */
	if (fcntl(draft->copy_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
		return fail_errno(err, errno, "the broker cannot seal the copy of the draft");
	void *map = mmap(NULL, draft->bytes, PROT_READ, MAP_SHARED, draft->copy_fd, 0);
	if (map == MAP_FAILED)
		return fail_errno(err, errno, "the broker cannot map the draft");
	draft->map = map;
	draft->validator = validator_new(draft->map, draft->bytes);
	if (draft->validator == NULL)
		return fail_errno(err, ENOMEM, "the broker cannot validate the draft");
	draft->phase = DRAFT_VALIDATE;
	return IPCC_OK;
}

/* Does the manifest describe what was claimed and handed over? */
static int compare_claim(const struct manifest *m, const struct model *claim, struct ipcc_error *err)
{
	struct key key;
	int rc = manifest_key(m, &key, err);
	if (rc != IPCC_OK)
		return rc;
	bool same = key_equal(&key, &claim->key);
	key_fini(&key);
	if (!same)
		return fail(err, IPCC_INVALID, "fields: the draft's key is not the one that was claimed");
	if (strcmp(manifest_name(m), claim->name) != 0)
		return fail(err, IPCC_INVALID, "name: the draft's name is not the one that was claimed");
	if (manifest_count(m, SECTION_SEGMENTS) != claim->segment_count)
		return fail(err, IPCC_INVALID, "segments: the draft has %u, %u were claimed",
			    manifest_count(m, SECTION_SEGMENTS), claim->segment_count);
	for (uint32_t i = 0; i < claim->segment_count; i++) {
		struct ipcc_segment segment;
		rc = manifest_segment(m, i, &segment, err);
		if (rc != IPCC_OK)
			return rc;
		if (strcmp(segment.device, segment_device(&claim->key)) != 0)
			return fail(err, IPCC_INVALID, "segments[%u].device: the draft says %s, the key %s", i,
				    segment.device, segment_device(&claim->key));
		if (segment.bytes != claim->segments[i].bytes ||
		    segment.handle_kind != (claim->kept ? HANDLE_LEGACY : HANDLE_FD))
			return fail(err, IPCC_INVALID,
				    "segments[%u]: the draft says %llu bytes, handle kind %u; %llu bytes were %s", i,
				    (unsigned long long)segment.bytes, segment.handle_kind,
				    (unsigned long long)claim->segments[i].bytes,
				    claim->kept ? "promised as a legacy handle" : "handed over as an fd");
	}
	return IPCC_OK;
}

/* What only the broker can say: who, when, which one. */
static void stamp(struct server *server, const struct conn *conn, struct manifest_header *header)
{
	const struct model *claim = conn->claim;
	memcpy(header->instance, server->instance, sizeof(header->instance));
	header->generation = le64_make(++server->registry.last_generation);
	header->created_ns = le64_make(now_realtime_ns());
	header->owner_uid = le32_make(claim->account->uid);
	header->publisher_pid = le32_make((uint32_t)claim->publisher_pid);
	header->visibility = le32_make(claim->visibility);
	header->visible_gid = le32_make(claim->visible_gid);
	header->checksum = le64_make(0);
}

static int step_validate(struct conn *conn, struct draft *draft, struct ipcc_error *err)
{
	enum validator_result result = validator_step(draft->validator, err);
	if (result == VALIDATOR_MORE)
		return IPCC_OK;
	if (result == VALIDATOR_ERROR)
		return fail_within(err, "the draft is refused");
	const struct manifest *m = validator_manifest(draft->validator);
	int rc = compare_claim(m, conn->claim, err);
	if (rc != IPCC_OK)
		return fail_within(err, "the draft is refused");
	draft->tensor_count = manifest_count(m, SECTION_TENSORS);
	draft->header = *m->header;
	stamp(conn->server, conn, &draft->header);
	draft->checksum = checksum_new();
	if (draft->checksum == NULL)
		return fail_errno(err, ENOMEM, "the broker cannot stamp the manifest");
	checksum_add(draft->checksum, &draft->header, sizeof(draft->header));
	draft->done = sizeof(draft->header);
	draft->phase = DRAFT_STAMP;
	return IPCC_OK;
}

/* The stamp changes the checksum, which is over everything. */
static int step_stamp(struct draft *draft, struct ipcc_error *err)
{
	uint64_t left = draft->bytes - draft->done, part = left < 4 * SLICE_BYTES ? left : 4 * SLICE_BYTES;
	checksum_add(draft->checksum, draft->map + draft->done, part);
	draft->done += part;
	if (draft->done < draft->bytes)
		return IPCC_OK;
	draft->header.checksum = le64_make(checksum_value(draft->checksum));
	draft_unmap(draft);
	int rc = fd_write_exact(draft->copy_fd, &draft->header, sizeof(draft->header), 0);
	if (rc == 0)
		rc = memfd_seal(draft->copy_fd);
	if (rc < 0)
		return fail_errno(err, -rc, "the broker cannot seal the manifest");
	draft->phase = DRAFT_SEAL;
	return IPCC_OK;
}

static void draft_finish(struct conn *conn, int rc, const struct ipcc_error *err)
{
	struct draft *draft = conn->draft;
	struct model *claim = conn->claim;
	uint32_t request = draft->request;
	struct message reply;
	if (rc == IPCC_OK) {
		claim->manifest_fd = fd_take(&draft->copy_fd);
		claim->manifest_bytes = draft->bytes;
		draft->phase = DRAFT_TAKEN;
		claim->tensor_count = draft->tensor_count;
		claim->generation = le64_get(draft->header.generation);
		claim->created_ns = le64_get(draft->header.created_ns);
	}
	draft_cancel(conn);
	if (rc == IPCC_OK) {
		message_start(&reply, MESSAGE_DRAFT, request, IPCC_OK);
		PROBE_REQUEST_REPLIED(conn->number, request, MESSAGE_DRAFT, IPCC_OK);
		conn_send(conn, &reply, false);
	} else {
		conn_send_error(conn, MESSAGE_DRAFT, request, err);
	}
	conn_update(conn);
}

/* The one under way, else the first of another uid than the last one's, else the first. */
static struct conn *draft_whose_turn(struct server *server)
{
	struct conn *conn = server->drafting;
	if (conn != NULL)
		return conn;
	TAILQ_FOREACH(conn, &server->drafts, draft_link)
	if (conn->peer.uid != server->drafted_uid)
		break;
	if (conn == NULL)
		conn = TAILQ_FIRST(&server->drafts);
	if (conn != NULL) {
		server->drafting = conn;
		server->drafted_uid = conn->peer.uid;
	}
	return conn;
}

void draft_step(struct server *server)
{
	struct conn *conn = draft_whose_turn(server);
	struct ipcc_error err = {0};
	int rc = IPCC_OK;
	if (conn == NULL)
		return;
	struct draft *draft = conn->draft;
	switch (draft->phase) {
	case DRAFT_COPY:
		rc = step_copy(draft, &err);
		break;
	case DRAFT_VALIDATE:
		rc = step_validate(conn, draft, &err);
		break;
	case DRAFT_STAMP:
		rc = step_stamp(draft, &err);
		break;
	case DRAFT_SEAL:
	case DRAFT_TAKEN:
		break;
	}
	if (rc != IPCC_OK || draft->phase == DRAFT_SEAL)
		draft_finish(conn, rc, &err);
}
