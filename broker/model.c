/* Life and death of a model; see model.h. */
#include "broker/model.h"

#include "broker/reaper.h"
#include "manifest/fd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model *model_new(struct key *key, const char *name, size_t name_bytes, const uint64_t *segment_bytes,
			uint32_t segment_count, bool kept)
{
	struct model *model = calloc(1, sizeof(*model));
	if (model == NULL)
		return NULL;
	model->manifest_fd = -1;
	TAILQ_INIT(&model->leases);
	model->name = strndup(name_bytes == 0 ? "" : name, name_bytes);
	model->segments = calloc(segment_count == 0 ? 1 : segment_count, sizeof(*model->segments));
	if (model->name == NULL || model->segments == NULL) {
		model_free(model);
		return NULL;
	}
	model->segment_count = segment_count;
	model->kept = kept;
	model->fd_count = kept ? 0 : segment_count;
	for (uint32_t i = 0; i < segment_count; i++) {
		model->segments[i] = (struct model_segment){.fd = -1, .bytes = segment_bytes[i]};
		model->bytes += segment_bytes[i];
	}
	model->key = *key;
	*key = (struct key){0};
	return model;
}

void model_drop_fds(struct model *model)
{
	for (uint32_t i = 0; i < model->segment_count; i++)
		reaper_close_memory(&model->segments[i].fd);
	reaper_close_memory(&model->manifest_fd);
}

void model_free(struct model *model)
{
	if (model->segments != NULL)
		model_drop_fds(model);
	key_fini(&model->key);
	free(model->segments);
	free(model->name);
	free(model);
}

const char *model_label(const struct model *model, char label[MODEL_LABEL_BYTES])
{
	char id[HASH_TEXT_BYTES];
	hash_text(&model->key.id, id);
	snprintf(label, MODEL_LABEL_BYTES, "uid %u's model %.100s (key %.8s)", model->account->uid,
		 *model->name ? model->name : "without a name", id);
	return label;
}
