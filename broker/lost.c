/* See lost.h. */
#include "broker/lost.h"

#include "broker/model.h"

#include <stdlib.h>
#include <string.h>

static void forget(struct lost_model *place)
{
	free(place->name);
	key_fini(&place->key);
	*place = (struct lost_model){0};
}

/* Where this very model stands, or NULL. */
static struct lost_model *place_of(struct lost *lost, const struct model *model)
{
	for (uint32_t i = 0; i < LOST_MAX; i++) {
		struct lost_model *place = &lost->models[i];
		if (place->name != NULL && place->owner == model->account->uid && key_equal(&place->key, &model->key))
			return place;
	}
	return NULL;
}

void lost_note(struct lost *lost, const struct model *model)
{
	struct lost_model made = {.owner = model->account->uid, .keeper = model->publisher_pid};
	struct lost_model *place = place_of(lost, model);
	if (key_init_packed(&made.key, model->key.packed, model->key.packed_bytes, model->key.count, NULL) != IPCC_OK)
		return;
	made.name = strdup(model->name);
	if (made.name == NULL) {
		key_fini(&made.key);
		return;
	}
	if (place == NULL)
		place = &lost->models[lost->next++ % LOST_MAX];
	forget(place);
	*place = made;
}

void lost_forget(struct lost *lost, const struct model *model)
{
	struct lost_model *place = place_of(lost, model);
	if (place != NULL)
		forget(place);
}

const struct lost_model *lost_find(const struct lost *lost, uid_t owner, const struct selection *want)
{
	for (uint32_t i = 0; i < LOST_MAX; i++) {
		const struct lost_model *place = &lost->models[(lost->next + LOST_MAX - 1 - i) % LOST_MAX];
		if (place->name != NULL && place->owner == owner &&
		    (want->text[0] == '\0' || strcmp(want->text, place->name) == 0 ||
		     key_id_matches(&place->key, want->text)) &&
		    key_differences(&want->key, &place->key, want->exact, NULL) == 0)
			return place;
	}
	return NULL;
}

void lost_fini(struct lost *lost)
{
	for (uint32_t i = 0; i < LOST_MAX; i++)
		forget(&lost->models[i]);
}
