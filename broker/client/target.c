/*
 * What a user calls a model: a path, a name, or a prefix of the key's id; see ipc_cache.h.
 *
 * A path is what contains '/', and "." and "..": a name never becomes a path because some folder happens to be called the
 * same. It is compared as the key field `model` by its real path, so that links and relative paths find the same model.
 */
#include "broker/client/client.h"

#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <stdlib.h>

static int resolve(struct target *target, const char *model, struct ipcc_error *err)
{
	if (*model == '\0')
		return fail(err, IPCC_USAGE, "an empty model name");
	if (strchr(model, '/') == NULL && strcmp(model, ".") != 0 && strcmp(model, "..") != 0) {
		if (strlen(model) > PROTOCOL_MAX_TEXT)
			return fail(err, IPCC_USAGE, "a model's name or key of more than %d bytes", PROTOCOL_MAX_TEXT);
		target->text = model;
		return IPCC_OK;
	}
	target->path = realpath(model, NULL);
	if (target->path == NULL && errno == ENOENT)
		return fail(err, IPCC_NOT_FOUND,
			    "%s does not exist here; a model of another machine or container is attached by its name",
			    model);
	if (target->path == NULL)
		return fail_errno(err, errno, "cannot resolve %s", model);
	return IPCC_OK;
}

int target_init(struct target *target, const char *model, const struct ipcc_field *fields, uint32_t field_count,
		struct ipcc_error *err)
{
	struct target made = {0};
	struct ipcc_field all[MANIFEST_MAX_FIELDS];
	if (model == NULL && field_count == 0)
		return fail(err, IPCC_USAGE, "name a model, or give fields of its key");
	if (field_count >= array_length(all))
		return fail(err, IPCC_USAGE, "%u key fields; at most %zu", field_count, array_length(all) - 1);
	for (uint32_t i = 0; i < field_count; i++)
		all[i] = fields[i];
	int rc = model == NULL ? IPCC_OK : resolve(&made, model, err);
	if (rc == IPCC_OK && made.path != NULL)
		all[field_count++] = (struct ipcc_field){.name = "model", .value = made.path};
	if (rc == IPCC_OK)
		rc = key_init(&made.key, all, field_count, err);
	if (rc != IPCC_OK) {
		target_fini(&made);
		return rc;
	}
	*target = made;
	return IPCC_OK;
}

void target_fini(struct target *target)
{
	free(target->path);
	key_fini(&target->key);
}
