/*
 * The end of a publication: what is not hashed yet is hashed, the segments are sealed, then SEGMENTS, DRAFT, COMMIT.
 *
 * A commit that fails leaves nothing behind but what ipcc_publish_free releases.
 */
#include "bpf/probes.h"
#include "broker/client/publish.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* On top of the time that any call may take. */
#define DRAFT_WAIT_MS 60000

struct segment_read {
	const struct ipcc_publish *publish;
	uint32_t segment;
};

static int read_segment(void *context, uint64_t offset, void *to, uint64_t bytes, struct ipcc_error *err)
{
	struct segment_read *read = context;
	return read->publish->device->read(&read->publish->segments[read->segment].memory, offset, to, bytes, err);
}

/* Hashes what the caller did not, then ends writing for ever. */
static int finish_segment(struct ipcc_publish *publish, uint32_t i, struct ipcc_error *err)
{
	struct publish_segment *s = &publish->segments[i];
	uint64_t count = hash_block_count(s->memory.bytes);
	struct segment_read read = {publish, i};
	if (s->memory.address == NULL)
		return fail(err, IPCC_USAGE, "segment %u was not created yet", i);
	if (s->blocks == NULL) {
		s->blocks = malloc(count * sizeof(*s->blocks));
		if (s->blocks == NULL)
			return fail_errno(err, ENOMEM, "cannot hash segment %u", i);
		struct fetched from = {.address = publish->device->is_host ? s->memory.address : NULL,
				       .bytes = s->memory.bytes,
				       .fetch = read_segment,
				       .context = &read};
		int rc = fetched_hash(&from, s->blocks, &s->hash, err);
		if (rc != IPCC_OK)
			return rc;
	}
	struct ipcc_segment segment = {
		.device = publish->device_name,
		.bytes = s->memory.bytes,
		.handle_kind = publish->keep ? HANDLE_LEGACY : HANDLE_FD,
		.handle_bytes = s->memory.handle.length,
		.block_count = (uint32_t)count,
	};
	memcpy(segment.hash, s->hash.bytes, sizeof(segment.hash));
	memcpy(segment.handle, s->memory.handle.bytes, sizeof(segment.handle));
	int rc = builder_add_segment(publish->builder, &segment, s->blocks, err);
	if (rc == IPCC_OK)
		rc = publish->device->seal(&s->memory, err);
	if (rc != IPCC_OK)
		return fail_within(err, "segment %u", i);
	PROBE_SEGMENT_FULL(i, s->memory.bytes);
	return IPCC_OK;
}

static int send_segments(struct ipcc_publish *publish, struct ipcc_error *err)
{
	struct call call;
	int fds[MANIFEST_MAX_SEGMENTS];
	struct segments_request fixed = {.count = le32_make(publish->segment_count)};
	for (uint32_t i = 0; i < publish->segment_count; i++)
		fds[i] = publish->segments[i].memory.fd;
	call_start(&call, MESSAGE_SEGMENTS);
	message_append(&call.message, &fixed, sizeof(fixed));
	int rc = call_run(&call, publish->client, fds, publish->segment_count, 0, err);
	if (rc == IPCC_OK)
		rc = call_finished(&call, 0, err);
	call_end(&call);
	return rc;
}

/* The draft in a sealed memfd of its own. */
static int draft_memfd(struct ipcc_publish *publish, int *fd, uint64_t *bytes, struct ipcc_error *err)
{
	void *draft;
	size_t length;
	int rc = builder_finish(publish->builder, &draft, &length, err);
	if (rc != IPCC_OK)
		return rc;
	cleanup_fd int made = memfd_new("ipc-cache-draft", length);
	int failed = made < 0 ? made : fd_write_exact(made, draft, length, 0);
	free(draft);
	if (failed == 0)
		failed = memfd_seal(made);
	if (failed < 0)
		return fail_errno(err, -failed, "cannot write the draft manifest");
	*fd = fd_take(&made);
	*bytes = length;
	return IPCC_OK;
}

static int send_draft(struct ipcc_publish *publish, struct ipcc_error *err)
{
	struct call call;
	cleanup_fd int fd = -1;
	uint64_t bytes = 0;
	int rc = draft_memfd(publish, &fd, &bytes, err);
	if (rc != IPCC_OK)
		return rc;
	struct draft_request fixed = {.bytes = le64_make(bytes)};
	call_start(&call, MESSAGE_DRAFT);
	message_append(&call.message, &fixed, sizeof(fixed));
	/* Drafts of others may be validated first. */
	rc = call_run(&call, publish->client, &fd, 1, DRAFT_WAIT_MS, err);
	if (rc == IPCC_OK)
		rc = call_finished(&call, 0, err);
	call_end(&call);
	return rc;
}

static int send_commit(struct ipcc_publish *publish, struct commit_reply *reply, struct ipcc_error *err)
{
	struct call call;
	call_start(&call, MESSAGE_COMMIT);
	int rc = call_run(&call, publish->client, NULL, 0, 0, err);
	if (rc == IPCC_OK) {
		cursor_copy(&call.body, reply, sizeof(*reply));
		rc = call_finished(&call, 0, err);
	}
	call_end(&call);
	return rc;
}

EXPORT int ipcc_publish_commit(struct ipcc_publish *publish, uint64_t *id, uint64_t *generation, struct ipcc_error *err)
{
	struct commit_reply reply;
	int rc = IPCC_OK;
	if (publish->committed || publish->client == NULL)
		return fail(err, IPCC_USAGE, "the publication is over already");
	publish_lap(publish);
	for (uint32_t i = 0; rc == IPCC_OK && i < publish->segment_count; i++)
		rc = finish_segment(publish, i, err);
	publish_lap_end(publish, IPCC_PHASE_SEAL);
	if (rc == IPCC_OK && publish->segment_count > 0 && !publish->keep)
		rc = send_segments(publish, err);
	if (rc == IPCC_OK)
		rc = send_draft(publish, err);
	if (rc == IPCC_OK)
		rc = send_commit(publish, &reply, err);
	publish_lap_end(publish, IPCC_PHASE_COMMIT);
	if (rc != IPCC_OK)
		return rc;
	publish->committed = true;
	if (!publish->keep)
		publish->client->publishing = NULL;
	if (id != NULL)
		*id = le64_get(reply.id);
	if (generation != NULL)
		*generation = le64_get(reply.generation);
	return IPCC_OK;
}
