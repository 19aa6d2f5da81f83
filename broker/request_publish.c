/*
 * BEGIN, SEGMENTS, DRAFT, COMMIT: how a model becomes resident.
 *
 * Invariant: until COMMIT everything hangs on the publisher's connection (conn->claim) and goes with it; after COMMIT
 * nothing does, unless the model is kept (conn->kept).
 */
#include "broker/draft.h"
#include "bpf/probes.h"
#include "broker/lifecycle.h"
#include "broker/reaper.h"
#include "broker/request.h"
#include "broker/segment.h"
#include "manifest/fail.h"
#include "manifest/fd.h"
#include "manifest/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

struct begin {
	uint32_t flags, wait_ms, segment_count, visibility;
	gid_t visible_gid;
	uint64_t segment_bytes[MANIFEST_MAX_SEGMENTS];
	const char *name;
	uint16_t name_bytes;
	struct key key;
};

static bool begin_kept(const struct begin *begin)
{
	return (begin->flags & BEGIN_KEPT) != 0;
}

static int begin_read(struct begin *begin, struct cursor *c, struct ipcc_error *err)
{
	struct begin_request fixed;
	cursor_copy(c, &fixed, sizeof(fixed));
	begin->flags = le32_get(fixed.flags);
	begin->wait_ms = le32_get(fixed.wait_ms);
	begin->segment_count = le32_get(fixed.segment_count);
	begin->visibility = le32_get(fixed.visibility);
	begin->visible_gid = le32_get(fixed.visible_gid);
	begin->name_bytes = le16_get(fixed.name_bytes);
	if (begin->segment_count > MANIFEST_MAX_SEGMENTS || begin->name_bytes > MANIFEST_MAX_NAME ||
	    (begin->flags & ~(uint32_t)(BEGIN_REPLACE | BEGIN_KEPT)) != 0 || le32_get(fixed.reserved) != 0)
		return fail(err, IPCC_PROTOCOL, "BEGIN: at most %d segments and %d bytes of name, known flags only",
			    MANIFEST_MAX_SEGMENTS, MANIFEST_MAX_NAME);
	for (uint32_t i = 0; i < begin->segment_count; i++) {
		le64 bytes;
		cursor_copy(c, &bytes, sizeof(bytes));
		begin->segment_bytes[i] = le64_get(bytes);
	}
	begin->name = cursor_take(c, begin->name_bytes);
	uint32_t field_bytes = le32_get(fixed.field_bytes);
	const void *packed = cursor_take(c, field_bytes);
	if (!cursor_finished(c))
		return fail(err, IPCC_PROTOCOL, "BEGIN: its lengths do not add up");
	if (!utf8_printable(begin->name, begin->name_bytes))
		return fail(err, IPCC_INVALID, "the model's name must be UTF-8 without control characters");
	if (le16_get(fixed.field_count) == 0)
		return fail(err, IPCC_INVALID, "the key is empty; it must name everything that decides the bytes");
	int rc = key_init_packed(&begin->key, packed, field_bytes, le16_get(fixed.field_count), err);
	if (rc == IPCC_OK && begin_kept(begin) && segment_is_host(&begin->key))
		rc = fail(err, IPCC_INVALID,
			  "device: host memory is handed over as file descriptors; a keeper holds a GPU's alone");
	return rc;
}

static int sum_segments(const struct begin *begin, uint64_t *sum, struct ipcc_error *err)
{
	uint64_t total = 0;
	for (uint32_t i = 0; i < begin->segment_count; i++)
		if (begin->segment_bytes[i] == 0 || add_overflows(total, begin->segment_bytes[i], &total))
			return fail(err, IPCC_INVALID, "segment %u: its size is zero, or the sizes exceed 64 bits", i);
	*sum = total;
	return IPCC_OK;
}

/* Somebody else publishes this key, or has published it. */
static int begin_conflict(struct conn *conn, struct request *request, const struct begin *begin, struct ipcc_error *err)
{
	const struct registry *registry = &conn->server->registry;
	char label[MODEL_LABEL_BYTES];
	struct model *other = registry_find(registry, conn->peer.uid, &begin->key, IPCC_MODEL_LOADING);
	if (other != NULL) {
		if (begin->wait_ms > 0 && !request->expired)
			return conn_park(conn, request, begin->wait_ms, other->id, err);
		return fail(err, IPCC_BUSY, "%s is being published by process %d; wait for it with --wait",
			    model_label(other, label), other->publisher_pid);
	}
	other = registry_find(registry, conn->peer.uid, &begin->key, IPCC_MODEL_READY);
	if (other != NULL && (begin->flags & BEGIN_REPLACE) == 0)
		return fail(err, IPCC_EXISTS,
			    "%s is resident already (generation %" PRIu64 "); attach to it, or publish with --replace",
			    model_label(other, label), other->generation);
	return IPCC_OK;
}

/* A BEGIN that was sent again. */
static bool same_claim(const struct model *claim, const struct begin *begin)
{
	bool same = key_equal(&claim->key, &begin->key) && claim->segment_count == begin->segment_count &&
		    claim->kept == begin_kept(begin) && claim->visibility == begin->visibility &&
		    claim->visible_gid == begin->visible_gid && strlen(claim->name) == begin->name_bytes &&
		    memcmp(claim->name, begin->name, begin->name_bytes) == 0;
	for (uint32_t i = 0; same && i < claim->segment_count; i++)
		same = claim->segments[i].bytes == begin->segment_bytes[i];
	return same;
}

static int begin_claim(struct conn *conn, struct begin *begin, struct ipcc_error *err)
{
	struct server *server = conn->server;
	struct account *account;
	uint64_t bytes = 0;
	if (reaper_foreign_left_of(conn->peer.uid) > REAPER_MAX_FOREIGN)
		return fail(err, IPCC_BUSY,
			    "the broker is still closing file descriptors that uid %u sent and that it could not take; "
			    "try again",
			    conn->peer.uid);
	int rc = sum_segments(begin, &bytes, err);
	uint32_t fds = begin_kept(begin) ? 0 : begin->segment_count;
	if (rc == IPCC_OK)
		rc = account_charge_model(&server->accounts, conn->peer.uid, fds, bytes, &account, err);
	if (rc != IPCC_OK)
		return rc;
	struct model *model = model_new(&begin->key, begin->name, begin->name_bytes, begin->segment_bytes,
					begin->segment_count, begin_kept(begin));
	if (model == NULL) {
		account_release_model(&server->accounts, account, fds, bytes);
		return fail_errno(err, ENOMEM, "the broker cannot take the model");
	}
	model->id = ++server->registry.last_id;
	model->created_ns = now_realtime_ns();
	model->state = IPCC_MODEL_LOADING;
	model->account = account;
	model->publisher_pid = conn->peer.pid;
	model->publisher_conn = conn->number;
	model->visibility = begin->visibility;
	model->visible_gid = begin->visible_gid;
	model->publisher = conn;
	conn->claim = model;
	conn->may_hold_fds = true;
	server_allow_fds(conn->fd, true);
	TAILQ_INSERT_TAIL(&server->registry.models, model, link);
	PROBE_PUBLISH_BEGUN(conn->number, model->id, model->bytes, model->segment_count, model->name);
	server->registry_changed = true; /* who waits for this key now waits for this publisher */
	return IPCC_OK;
}

int handle_begin(struct conn *conn, struct request *request, struct message *reply, struct ipcc_error *err)
{
	struct begin begin = {0};
	int rc = begin_read(&begin, &request->body, err);
	if (rc == IPCC_OK)
		rc = policy_publish(&conn->server->policy, conn_asker(conn), begin.visibility, begin.visible_gid, err);
	if (rc == IPCC_OK && conn->claim != NULL && !same_claim(conn->claim, &begin))
		rc = fail(err, IPCC_REFUSED,
			  "this connection publishes another model already; commit it or open a second one");
	if (rc == IPCC_OK && conn->kept != NULL)
		rc = fail(err, IPCC_REFUSED, "this connection keeps a model; open a second one to publish another");
	if (rc == IPCC_OK && conn->claim == NULL) {
		rc = begin_conflict(conn, request, &begin, err);
		if (rc == IPCC_OK)
			rc = begin_claim(conn, &begin, err);
	}
	key_fini(&begin.key);
	if (rc != IPCC_OK)
		return rc;
	struct begin_reply body = {.id = le64_make(conn->claim->id)};
	message_append(reply, &body, sizeof(body));
	return IPCC_OK;
}

/* Is the fd what was promised, and no other segment of this model? Two of a GPU's cannot be told apart. */
static int check_segment(const struct model *claim, uint32_t i, int fd, struct segment_facts *facts,
			 struct ipcc_error *err)
{
	char what[32];
	snprintf(what, sizeof(what), "segment %u", i);
	int rc = segment_check(&claim->key, fd, what, facts, err);
	if (rc != IPCC_OK || !facts->sized)
		return rc;
	if (facts->bytes != claim->segments[i].bytes)
		return fail(err, IPCC_INVALID, "segment %u has %" PRIu64 " bytes, %" PRIu64 " were promised", i,
			    facts->bytes, claim->segments[i].bytes);
	for (uint32_t j = 0; j < claim->segment_count; j++) {
		const struct model_segment *other = &claim->segments[j];
		if (j != i && other->fd >= 0 && other->inode == facts->inode && other->device == facts->device)
			return fail(err, IPCC_INVALID,
				    "segment %u is the same memory as segment %u; each needs its own", i, j);
	}
	return IPCC_OK;
}

int handle_segments(struct conn *conn, struct request *request, struct message *reply, struct ipcc_error *err)
{
	struct segments_request fixed;
	cursor_copy(&request->body, &fixed, sizeof(fixed));
	uint32_t first = le32_get(fixed.first), count = le32_get(fixed.count);
	struct model *claim = conn->claim;
	(void)reply;
	if (!cursor_finished(&request->body) || count != request->fds->count || count == 0)
		return fail(err, IPCC_PROTOCOL, "SEGMENTS: says %u file descriptors, %u came", count,
			    request->fds->count);
	if (claim == NULL)
		return fail(err, IPCC_REFUSED, "SEGMENTS without BEGIN: nothing is being published here");
	if (claim->kept)
		return fail(err, IPCC_REFUSED, "SEGMENTS: the handles of a kept model stand in its manifest");
	if (!range_inside(first, count, claim->segment_count))
		return fail(err, IPCC_INVALID, "segments %u to %" PRIu64 " of %u", first, first + (uint64_t)count - 1,
			    claim->segment_count);
	for (uint32_t i = 0; i < count; i++) {
		struct segment_facts facts;
		struct model_segment *segment = &claim->segments[first + i];
		int rc = check_segment(claim, first + i, request->fds->fds[i], &facts, err);
		if (rc != IPCC_OK)
			return rc;
		reaper_close_memory(&segment->fd); /* handed over again: the newer one counts */
		segment->fd = wire_fd_take(request->fds, i);
		segment->device = facts.device;
		segment->inode = facts.inode;
	}
	return IPCC_OK;
}

int handle_draft(struct conn *conn, struct request *request, struct message *reply, struct ipcc_error *err)
{
	struct draft_request fixed;
	cursor_copy(&request->body, &fixed, sizeof(fixed));
	(void)reply;
	if (!cursor_finished(&request->body) || request->fds->count != 1)
		return fail(err, IPCC_PROTOCOL, "DRAFT: one file descriptor is due, %u came", request->fds->count);
	struct model *claim = conn->claim;
	if (claim == NULL)
		return fail(err, IPCC_REFUSED, "DRAFT without BEGIN: nothing is being published here");
	for (uint32_t i = 0; i < claim->fd_count; i++)
		if (claim->segments[i].fd < 0)
			return fail(err, IPCC_REFUSED, "DRAFT before segment %u was handed over", i);
	/* A second draft replaces the first. */
	reaper_close_memory(&claim->manifest_fd);
	account_release_manifest(claim->account, claim->manifest_bytes);
	claim->manifest_bytes = 0;
	int rc = draft_start(conn, &request->fds->fds[0], le64_get(fixed.bytes), request->id, err);
	return rc == IPCC_OK ? REQUEST_LATER : rc;
}

/* The older generation takes no new attach and goes with its last lease. */
static void replace_older(struct server *server, const struct model *newer)
{
	struct model *older = registry_find(&server->registry, newer->account->uid, &newer->key, IPCC_MODEL_READY);
	if (older != NULL)
		lifecycle_drain(server, older);
}

int handle_commit(struct conn *conn, struct request *request, struct message *reply, struct ipcc_error *err)
{
	struct server *server = conn->server;
	struct model *model = conn->claim;
	if (!cursor_finished(&request->body))
		return fail(err, IPCC_PROTOCOL, "COMMIT has no body");
	if (model == NULL && conn->committed_id == 0)
		return fail(err, IPCC_REFUSED, "COMMIT without BEGIN: nothing is being published here");
	if (model != NULL) {
		if (model->manifest_fd < 0)
			return fail(err, IPCC_REFUSED, "COMMIT before a DRAFT was accepted");
		int rc = journal_model(server->journal, model, model->kept ? JOURNAL_KEPT : JOURNAL_READY, err);
		if (rc != IPCC_OK)
			return rc;
		replace_older(server, model);
		model->state = IPCC_MODEL_READY;
		model->publisher = NULL;
		conn->claim = NULL;
		if (model->kept) {
			model->keeper = conn;
			conn->kept = model;
		}
		lost_forget(&server->registry.lost, model);
		if (server->fds_refused)
			server_allow_fds(conn->fd, false);
		conn->committed_id = model->id;
		conn->committed_generation = model->generation;
		server->registry_changed = true;
		server->counters.commits++;
		PROBE_PUBLISH_COMMITTED(conn->number, model->id, model->bytes, model->generation, model->name);
		char label[MODEL_LABEL_BYTES];
		server->log("resident: %s, %u tensors, %" PRIu64 " bytes, generation %" PRIu64 "%s",
			    model_label(model, label), model->tensor_count, model->bytes, model->generation,
			    model->kept ? ", kept by its publisher" : "");
	}
	struct commit_reply body = {.id = le64_make(conn->committed_id),
				    .generation = le64_make(conn->committed_generation)};
	message_append(reply, &body, sizeof(body));
	return IPCC_OK;
}
