/*
 * Publishing: BEGIN, then segments are created and filled and described; publish_commit.c does the rest. See ipc_cache.h.
 *
 * Invariant: until COMMIT is answered everything belongs to this process and its connection; ending either leaves
 * nothing behind.
 */
#include "broker/client/publish.h"

#include "broker/client/publish_memory.h"
#include "manifest/fail.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* What the segments will have: a GPU's sizes are multiples of its granularity. */
static int round_sizes(struct ipcc_publish *publish, const struct ipcc_publish_options *options, uint64_t *total,
		       struct ipcc_error *err)
{
	uint64_t granularity = 1, sum = 0;
	int rc = publish->device->granularity(publish->device_name, &granularity, err);
	for (uint32_t i = 0; rc == IPCC_OK && i < options->segment_count; i++) {
		uint64_t bytes = options->segment_bytes[i], rounded = 0;
		if (bytes == 0 || add_overflows(bytes, granularity - 1, &rounded) ||
		    add_overflows(sum, align_up(bytes, granularity), &sum))
			rc = fail(err, IPCC_USAGE, "segment %u: its size is zero, or the sizes exceed 64 bits", i);
		publish->segments[i].memory.bytes = align_up(bytes, granularity);
	}
	*total = sum;
	return rc;
}

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void publish_lap(struct ipcc_publish *publish)
{
	publish->lap_ns = now_ns();
}

void publish_lap_end(struct ipcc_publish *publish, enum ipcc_phase phase)
{
	uint64_t now = now_ns();
	publish->phase_ns[phase] += now - publish->lap_ns;
	publish->lap_ns = now;
}

EXPORT uint64_t ipcc_publish_phase_ns(const struct ipcc_publish *publish, enum ipcc_phase phase)
{
	return (unsigned)phase < IPCC_PHASES ? publish->phase_ns[phase] : 0;
}

static int begin(struct ipcc_publish *publish, const struct ipcc_publish_options *options, const struct key *key,
		 struct ipcc_error *err)
{
	struct call call;
	struct begin_reply reply;
	size_t name_bytes = options->name == NULL ? 0 : strlen(options->name);
	if (name_bytes > MANIFEST_MAX_NAME)
		return fail(err, IPCC_USAGE, "the model's name has %zu bytes; at most %d", name_bytes,
			    MANIFEST_MAX_NAME);
	struct begin_request fixed = {
		.flags = le32_make((options->replace ? BEGIN_REPLACE : 0) | (options->keep ? BEGIN_KEPT : 0)),
		.wait_ms = le32_make(wire_wait(options->wait_ms)),
		.segment_count = le32_make(options->segment_count),
		.visibility = le32_make(options->visibility),
		.visible_gid = le32_make(options->visible_gid),
		.name_bytes = le16_make((uint16_t)name_bytes),
		.field_count = le16_make((uint16_t)key->count),
		.field_bytes = le32_make((uint32_t)key->packed_bytes),
	};
	publish_lap(publish);
	call_start(&call, MESSAGE_BEGIN);
	message_append(&call.message, &fixed, sizeof(fixed));
	for (uint32_t i = 0; i < options->segment_count; i++) {
		le64 bytes = le64_make(publish->segments[i].memory.bytes);
		message_append(&call.message, &bytes, sizeof(bytes));
	}
	message_append(&call.message, options->name, name_bytes);
	message_append(&call.message, key->packed, key->packed_bytes);
	int rc = call_run(&call, publish->client, NULL, 0, options->wait_ms, err);
	if (rc == IPCC_OK) {
		cursor_copy(&call.body, &reply, sizeof(reply));
		rc = call_finished(&call, 0, err);
	}
	call_end(&call);
	publish_lap_end(publish, IPCC_PHASE_CLAIM);
	return rc;
}

static int describe(struct ipcc_publish *publish, const struct ipcc_publish_options *options, const struct key *key,
		    struct ipcc_error *err)
{
	int rc = options->name == NULL ? IPCC_OK : builder_set_name(publish->builder, options->name, err);
	for (uint32_t i = 0; rc == IPCC_OK && i < key->count; i++)
		rc = builder_add_field(publish->builder, key->fields[i].name, key->fields[i].value, err);
	return rc;
}

static int create_segment(struct ipcc_publish *publish, uint32_t i, struct ipcc_error *err)
{
	char name[64];
	struct device_segment *memory = &publish->segments[i].memory;
	snprintf(name, sizeof(name), "ipc-cache-segment-%u", i);
	int rc = publish->device->create(publish->device_name, name, memory->bytes, memory, err);
	/* What lies between tensors is zero, whatever this memory held before. */
	if (rc == IPCC_OK && publish->device->clear != NULL && !publish->overwritten)
		rc = publish->device->clear(memory, err);
	return rc == IPCC_OK ? IPCC_OK : fail_within(err, "segment %u", i);
}

/* The device stays open until the publication is freed: its context is set up once. */
static int create_segments(struct ipcc_publish *publish, uint64_t total, bool create_later, struct ipcc_error *err)
{
	const struct device *device = publish->device;
	int rc = total == 0 ? IPCC_OK : device->open(publish->device_name, err);
	publish->opened = rc == IPCC_OK && total > 0;
	publish_lap_end(publish, IPCC_PHASE_OPEN);
	if (create_later)
		return rc;
	/* Only now: what is resident already, or on its way, needs no more memory. */
	if (publish->opened)
		rc = device->memory_check(publish->device_name, total, err);
	for (uint32_t i = 0; rc == IPCC_OK && i < publish->segment_count; i++)
		rc = create_segment(publish, i, err);
	publish_lap_end(publish, IPCC_PHASE_CREATE);
	return rc;
}

EXPORT int ipcc_publish_create(struct ipcc_publish *publish, uint32_t segment, struct ipcc_error *err)
{
	if (segment >= publish->segment_count || publish->segments[segment].memory.address != NULL)
		return fail(err, IPCC_USAGE, "segment %u of %u does not exist, or is created already", segment,
			    publish->segment_count);
	uint64_t bytes = publish->segments[segment].memory.bytes;
	int rc = publish->device->memory_check(publish->device_name, bytes, err);
	return rc != IPCC_OK ? fail_within(err, "segment %u", segment) : create_segment(publish, segment, err);
}

static struct ipcc_publish *publish_new(struct ipcc_client *client, const struct device *device, const char *name,
					uint32_t segment_count)
{
	struct ipcc_publish *publish = calloc(1, sizeof(*publish));
	if (publish == NULL)
		return NULL;
	publish->client = client;
	publish->device = device;
	publish->device_name = strdup(name);
	publish->builder = builder_new();
	publish->segments = calloc(segment_count + 1, sizeof(*publish->segments));
	if (publish->device_name == NULL || publish->builder == NULL || publish->segments == NULL) {
		publish->client = NULL;
		ipcc_publish_free(publish);
		return NULL;
	}
	publish->segment_count = segment_count;
	for (uint32_t i = 0; i < segment_count; i++)
		publish->segments[i].memory.fd = -1;
	return publish;
}

EXPORT int ipcc_publish_begin(struct ipcc_client *client, const struct ipcc_publish_options *options,
			      struct ipcc_publish **publish, struct ipcc_error *err)
{
	const char *name = options->device == NULL ? DEVICE_HOST : options->device;
	struct key key = {0};
	if (client->publishing != NULL)
		return fail(err, IPCC_USAGE, "this client publishes another model; free that publication first");
	if (options->segment_count > MANIFEST_MAX_SEGMENTS)
		return fail(err, IPCC_USAGE, "%u segments; a model has at most %d", options->segment_count,
			    MANIFEST_MAX_SEGMENTS);
	const struct device *device = options->keep ? device_find_kept(name, err) : device_find(name, err);
	int missing = strcmp(name, DEVICE_HOST) == 0 ? IPCC_REFUSED : IPCC_NOT_FOUND;
	int rc = device == NULL ? missing : key_init(&key, options->fields, options->field_count, err);
	if (rc != IPCC_OK)
		return rc;
	struct ipcc_publish *made = publish_new(client, device, name, options->segment_count);
	uint64_t total = 0;
	rc = made == NULL ? fail_errno(err, ENOMEM, "cannot publish") : describe(made, options, &key, err);
	if (rc == IPCC_OK)
		rc = round_sizes(made, options, &total, err);
	if (rc == IPCC_OK)
		rc = begin(made, options, &key, err);
	bool claimed = rc == IPCC_OK;
	if (rc == IPCC_OK) {
		made->overwritten = options->overwritten;
		rc = create_segments(made, total, options->create_later, err);
	}
	key_fini(&key);
	if (rc != IPCC_OK) {
		if (made != NULL && !claimed)
			made->client = NULL; /* nothing is claimed: the connection stays usable */
		ipcc_publish_free(made);
		return rc;
	}
	made->keep = options->keep;
	client->publishing = made;
	*publish = made;
	return IPCC_OK;
}

const struct device *publish_device(const struct ipcc_publish *publish)
{
	return publish->device;
}

struct device_segment *publish_memory(struct ipcc_publish *publish, uint32_t segment)
{
	if (segment >= publish->segment_count || publish->segments[segment].memory.address == NULL)
		return NULL;
	return &publish->segments[segment].memory;
}

EXPORT void *ipcc_publish_address(const struct ipcc_publish *publish, uint32_t segment)
{
	return segment < publish->segment_count ? publish->segments[segment].memory.address : NULL;
}

static int check_range(const struct ipcc_publish *publish, uint32_t segment, uint64_t offset, uint64_t bytes,
		       struct ipcc_error *err)
{
	if (segment < publish->segment_count && range_inside(offset, bytes, publish->segments[segment].memory.bytes) &&
	    publish->segments[segment].memory.address != NULL)
		return IPCC_OK;
	return fail(err, IPCC_USAGE, "%llu bytes at offset %llu are not in segment %u, or it is complete already",
		    (unsigned long long)bytes, (unsigned long long)offset, segment);
}

EXPORT int ipcc_publish_write(struct ipcc_publish *publish, uint32_t segment, uint64_t offset, const void *from,
			      uint64_t bytes, struct ipcc_error *err)
{
	int rc = check_range(publish, segment, offset, bytes, err);
	return rc != IPCC_OK ? rc
			     : publish->device->write(&publish->segments[segment].memory, offset, from, bytes, err);
}

EXPORT int ipcc_publish_read(const struct ipcc_publish *publish, uint32_t segment, uint64_t offset, void *to,
			     uint64_t bytes, struct ipcc_error *err)
{
	int rc = check_range(publish, segment, offset, bytes, err);
	return rc != IPCC_OK ? rc : publish->device->read(&publish->segments[segment].memory, offset, to, bytes, err);
}

EXPORT uint64_t ipcc_publish_huge_bytes(const struct ipcc_publish *publish)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < publish->segment_count; i++)
		bytes += publish->device->huge_bytes(&publish->segments[i].memory);
	return bytes;
}

EXPORT int ipcc_publish_tensor(struct ipcc_publish *publish, const struct ipcc_tensor *tensor, struct ipcc_error *err)
{
	return builder_add_tensor(publish->builder, tensor, err);
}

EXPORT int ipcc_publish_source(struct ipcc_publish *publish, const struct ipcc_source *source, struct ipcc_error *err)
{
	return builder_add_source(publish->builder, source, err);
}

EXPORT int ipcc_publish_attribute(struct ipcc_publish *publish, const struct ipcc_attribute *attribute,
				  struct ipcc_error *err)
{
	return builder_add_attribute(publish->builder, attribute, err);
}

EXPORT int ipcc_publish_hashes(struct ipcc_publish *publish, uint32_t segment, const uint8_t (*hashes)[16],
			       uint32_t count, struct ipcc_error *err)
{
	if (segment >= publish->segment_count)
		return fail(err, IPCC_USAGE, "segment %u of %u", segment, publish->segment_count);
	struct publish_segment *s = &publish->segments[segment];
	uint64_t expected = hash_block_count(s->memory.bytes);
	if (count != expected)
		return fail(err, IPCC_USAGE, "segment %u: %u block hashes, %llu are due", segment, count,
			    (unsigned long long)expected);
	struct hash128 *copy = malloc(count * sizeof(*copy));
	if (copy == NULL)
		return fail_errno(err, ENOMEM, "cannot keep the block hashes of segment %u", segment);
	memcpy(copy, hashes, count * sizeof(*copy));
	free(s->blocks);
	s->blocks = copy;
	s->hash = hash_bytes(copy, count * sizeof(*copy));
	return IPCC_OK;
}

void publish_orphan(struct ipcc_publish *publish)
{
	publish->client = NULL;
}

EXPORT void ipcc_publish_free(struct ipcc_publish *publish)
{
	if (publish == NULL)
		return;
	if (publish->client != NULL && !publish->committed) {
		/* The connection is the claim: ending it gives the claim up. */
		client_hang_up(publish->client);
		publish->client->publishing = NULL;
	} else if (publish->client != NULL && publish->keep) {
		keep_end(publish);
	}
	for (uint32_t i = 0; i < publish->segment_count; i++) {
		publish->device->destroy(&publish->segments[i].memory);
		free(publish->segments[i].blocks);
	}
	if (publish->opened)
		publish->device->close(publish->device_name);
	builder_free(publish->builder);
	free(publish->device_name);
	free(publish->segments);
	free(publish);
}
