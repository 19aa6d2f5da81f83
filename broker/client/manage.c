/* LIST, EVICT, PING, STAT; see ipc_cache.h. */
#include "broker/client/client.h"

#include "manifest/fail.h"

#include <errno.h>
#include <stdlib.h>

EXPORT int ipcc_ping(struct ipcc_client *client, struct ipcc_error *err)
{
	struct call call;
	call_start(&call, MESSAGE_PING);
	int rc = call_run(&call, client, NULL, 0, 0, err);
	if (rc == IPCC_OK)
		rc = call_finished(&call, 0, err);
	call_end(&call);
	return rc;
}

EXPORT int ipcc_stat(struct ipcc_client *client, struct ipcc_stat *stat, struct ipcc_error *err)
{
	struct call call;
	struct stat_reply r;
	call_start(&call, MESSAGE_STAT);
	int rc = call_run(&call, client, NULL, 0, 0, err);
	if (rc == IPCC_OK) {
		cursor_copy(&call.body, &r, sizeof(r));
		rc = call_finished(&call, 0, err);
	}
	call_end(&call);
	if (rc != IPCC_OK)
		return rc;
	*stat = (struct ipcc_stat){
		.pid = (pid_t)le32_get(r.pid),
		.uid = le32_get(r.uid),
		.uptime_ns = le64_get(r.uptime_ns),
		.connections = le64_get(r.connections),
		.models = le64_get(r.models),
		.loading = le64_get(r.loading),
		.leases = le64_get(r.leases),
		.bytes = le64_get(r.bytes),
		.fds = le64_get(r.fds),
		.fd_limit = le64_get(r.fd_limit),
		.accepted = le64_get(r.accepted),
		.refused = le64_get(r.refused),
		.attaches = le64_get(r.attaches),
		.mismatches = le64_get(r.mismatches),
		.commits = le64_get(r.commits),
		.evictions = le64_get(r.evictions),
	};
	memcpy(stat->instance, r.instance, sizeof(stat->instance));
	memcpy(stat->version, r.version, sizeof(stat->version) - 1);
	return IPCC_OK;
}

EXPORT int ipcc_evict(struct ipcc_client *client, const char *model, const struct ipcc_field *fields,
		      uint32_t field_count, enum ipcc_evict_mode mode, int wait_ms, bool *draining,
		      struct ipcc_error *err)
{
	struct call call;
	struct target target;
	struct evict_reply reply;
	struct evict_request fixed = {.mode = le32_make(mode)};
	int rc = target_init(&target, model, fields, field_count, err);
	if (rc != IPCC_OK)
		return rc;
	call_start(&call, MESSAGE_EVICT);
	message_append(&call.message, &fixed, sizeof(fixed));
	selection_append(&call.message, target.text, &target.key, false, wire_wait(wait_ms));
	rc = call_run(&call, client, NULL, 0, wait_ms, err);
	if (rc == IPCC_OK) {
		cursor_copy(&call.body, &reply, sizeof(reply));
		rc = call_finished(&call, 0, err);
	}
	call_end(&call);
	target_fini(&target);
	if (rc != IPCC_OK)
		return rc;
	client->evicted_id = le64_get(reply.id);
	if (draining != NULL)
		*draining = le32_get(reply.leases) > 0;
	return IPCC_OK;
}

EXPORT uint64_t ipcc_evicted_id(const struct ipcc_client *client)
{
	return client->evicted_id;
}

/* A list under construction: the models, and what belongs to each. */
struct listing_parts {
	struct key key; /* owns the fields */
	char *name;
	struct ipcc_holder *holders;
};

struct list {
	struct ipcc_list public; /* first: ipcc_list_free gets its address */
	struct listing_parts *parts;
	uint32_t capacity;
};

EXPORT void ipcc_list_free(struct ipcc_list *public)
{
	struct list *list = (struct list *)public;
	if (list == NULL)
		return;
	for (uint32_t i = 0; i < list->public.count; i++) {
		key_fini(&list->parts[i].key);
		free(list->parts[i].name);
		free(list->parts[i].holders);
	}
	free(list->public.models);
	free(list->parts);
	free(list);
}

static bool list_grow(struct list *list)
{
	if (list->public.count < list->capacity)
		return true;
	uint32_t capacity = list->capacity == 0 ? 16 : 2 * list->capacity;
	struct ipcc_listing *models = realloc(list->public.models, capacity * sizeof(*models));
	if (models != NULL)
		list->public.models = models;
	struct listing_parts *parts = realloc(list->parts, capacity * sizeof(*parts));
	if (parts != NULL)
		list->parts = parts;
	if (models == NULL || parts == NULL)
		return false;
	list->capacity = capacity;
	return true;
}

static int read_parts(struct listing_parts *parts, const struct list_entry *entry, struct cursor *c,
		      struct ipcc_error *err)
{
	uint16_t holders = le16_get(entry->holder_count), name_bytes = le16_get(entry->name_bytes);
	parts->holders = calloc(holders + 1U, sizeof(*parts->holders));
	if (parts->holders == NULL)
		return fail_errno(err, ENOMEM, "cannot list the models");
	for (uint16_t i = 0; i < holders; i++) {
		struct list_holder holder;
		cursor_copy(c, &holder, sizeof(holder));
		parts->holders[i] = (struct ipcc_holder){.pid = (pid_t)le32_get(holder.pid),
							 .uid = le32_get(holder.uid),
							 .since_ns = le64_get(holder.since_ns)};
	}
	const char *name = cursor_take(c, name_bytes);
	const void *packed = cursor_take(c, le32_get(entry->field_bytes));
	if (c->failed)
		return fail(err, IPCC_PROTOCOL, "the broker sent a malformed list");
	parts->name = strndup(name, name_bytes);
	if (parts->name == NULL)
		return fail_errno(err, ENOMEM, "cannot list the models");
	return key_init_packed(&parts->key, packed, le32_get(entry->field_bytes), le16_get(entry->field_count), err);
}

static int read_entry(struct list *list, struct cursor *c, struct ipcc_error *err)
{
	struct list_entry entry;
	if (!list_grow(list))
		return fail_errno(err, ENOMEM, "cannot list the models");
	struct listing_parts *parts = &list->parts[list->public.count];
	struct ipcc_listing *model = &list->public.models[list->public.count];
	*parts = (struct listing_parts){0};
	*model = (struct ipcc_listing){0};
	list->public.count++; /* from here on ipcc_list_free takes care of it */
	cursor_copy(c, &entry, sizeof(entry));
	int rc = read_parts(parts, &entry, c, err);
	if (rc != IPCC_OK)
		return rc;
	*model = (struct ipcc_listing){
		.id = le64_get(entry.id),
		.generation = le64_get(entry.generation),
		.state = le32_get(entry.state),
		.name = parts->name,
		.owner_uid = le32_get(entry.owner_uid),
		.publisher_pid = (pid_t)le32_get(entry.publisher_pid),
		.visibility = le32_get(entry.visibility),
		.visible_gid = le32_get(entry.visible_gid),
		.created_ns = le64_get(entry.created_ns),
		.bytes = le64_get(entry.bytes),
		.segments = le32_get(entry.segment_count),
		.tensors = le32_get(entry.tensor_count),
		.field_count = parts->key.count,
		.fields = parts->key.fields,
		.leases = le32_get(entry.lease_count),
		.kept = (le32_get(entry.flags) & MODEL_KEPT) != 0,
		.holder_count = le16_get(entry.holder_count),
		.holders = parts->holders,
	};
	hash_text(&parts->key.id, model->key_id);
	return IPCC_OK;
}

/* One page; *more says whether another follows. */
static int list_page(struct ipcc_client *client, struct list *list, bool *more, struct ipcc_error *err)
{
	struct call call;
	struct list_reply head;
	uint32_t count = list->public.count;
	uint64_t after = count == 0 ? 0 : list->public.models[count - 1].id;
	struct list_request fixed = {.after_id = le64_make(after)};
	call_start(&call, MESSAGE_LIST);
	message_append(&call.message, &fixed, sizeof(fixed));
	int rc = call_run(&call, client, NULL, 0, 0, err);
	if (rc == IPCC_OK) {
		cursor_copy(&call.body, &head, sizeof(head));
		for (uint32_t i = 0; rc == IPCC_OK && i < le32_get(head.count); i++)
			rc = read_entry(list, &call.body, err);
	}
	if (rc == IPCC_OK)
		rc = call_finished(&call, 0, err);
	call_end(&call);
	if (rc == IPCC_OK)
		*more = le32_get(head.more) != 0 && list->public.count > count;
	return rc;
}

EXPORT int ipcc_list(struct ipcc_client *client, struct ipcc_list **out, struct ipcc_error *err)
{
	struct list *list = calloc(1, sizeof(*list));
	bool more = true;
	int rc = IPCC_OK;
	if (list == NULL)
		return fail_errno(err, ENOMEM, "cannot list the models");
	while (rc == IPCC_OK && more)
		rc = list_page(client, list, &more, err);
	if (rc != IPCC_OK) {
		ipcc_list_free(&list->public);
		return rc;
	}
	*out = &list->public;
	return IPCC_OK;
}
