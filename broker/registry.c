/*
 * Lookups; see registry.h. Linear over the models, of which a broker holds hundreds at most: what a lookup costs is a few
 * comparisons of 16-byte ids and short names.
 */
#include "broker/registry.h"

#include "manifest/fail.h"

#include <stdio.h>

struct model *registry_find(const struct registry *registry, uid_t owner, const struct key *key, uint32_t state)
{
	struct model *model;
	TAILQ_FOREACH_REVERSE(model, &registry->models, model_list, link)
	if (model->state == state && model->account->uid == owner && key_equal(&model->key, key))
		return model;
	return NULL;
}

struct model *registry_by_id(const struct registry *registry, uint64_t id)
{
	struct model *model;
	TAILQ_FOREACH(model, &registry->models, link)
	if (model->id == id)
		return model;
	return NULL;
}

struct search {
	const struct policy *policy;
	struct asker asker;
	const struct selection *want;
	bool visible; /* what may be seen, not what may be attached */
};

/* Smaller is nearer to the asker; -1: not for it. */
static int search_rank(const struct search *s, const struct model *model)
{
	if (!s->visible)
		return policy_rank(s->policy, s->asker, model);
	if (model->account->uid == s->asker.peer->uid)
		return 0;
	return policy_visible(s->policy, s->asker, model) ? 1 : -1;
}

static bool search_state(const struct search *s, const struct model *model)
{
	return model->state == IPCC_MODEL_READY ||
	       (s->visible && model->state == IPCC_MODEL_DRAINING && !model->dropped);
}

static bool text_matches(const struct selection *want, const struct model *model)
{
	return want->text[0] == '\0' || strcmp(want->text, model->name) == 0 || key_id_matches(&model->key, want->text);
}

static bool matches(const struct selection *want, const struct model *model)
{
	return text_matches(want, model) && key_differences(&want->key, &model->key, want->exact, NULL) == 0;
}

static int ambiguous(const struct model *a, const struct model *b, struct ipcc_error *err)
{
	char first[MODEL_LABEL_BYTES], second[MODEL_LABEL_BYTES];
	return fail(err, IPCC_REFUSED, "several models match, among them %s and %s; name one by more of its key",
		    model_label(a, first), model_label(b, second));
}

/* The newest match of the nearest rank; of one key only. */
static int search_ready(const struct registry *registry, const struct search *s, struct model **found,
			struct ipcc_error *err)
{
	struct model *model, *best = NULL, *other = NULL;
	int best_rank = POLICY_RANKS;
	TAILQ_FOREACH(model, &registry->models, link)
	{
		int rank = search_state(s, model) && matches(s->want, model) ? search_rank(s, model) : -1;
		if (rank < 0 || rank > best_rank)
			continue;
		bool nearer = best == NULL || rank < best_rank;
		bool same_key = best != NULL && key_equal(&best->key, &model->key) && best->account == model->account;
		if (nearer)
			other = NULL;
		else if (!same_key)
			other = model;
		if (nearer || (same_key && model->generation > best->generation)) {
			best = model;
			best_rank = rank;
		}
	}
	if (best == NULL)
		return IPCC_NOT_FOUND;
	if (other != NULL)
		return ambiguous(best, other, err);
	*found = best;
	return IPCC_OK;
}

static struct model *search_state_match(const struct registry *registry, const struct search *s, uint32_t state)
{
	struct model *model;
	TAILQ_FOREACH(model, &registry->models, link)
	if (model->state == state && matches(s->want, model) && search_rank(s, model) >= 0)
		return model;
	return NULL;
}

/* A model is near when it is the same model with other circumstances: `model`, where it is asked for, must agree. */
static bool is_near(const struct search *s, const struct model *model)
{
	const char *want = key_value(&s->want->key, "model"), *have = key_value(&model->key, "model");
	if (s->want->text[0] == '\0' && want == NULL)
		return false;
	return text_matches(s->want, model) && (want == NULL || (have != NULL && strcmp(want, have) == 0));
}

static int search_mismatch(const struct registry *registry, const struct search *s, struct ipcc_error *err)
{
	struct model *model, *nearest = NULL;
	uint32_t fewest = UINT32_MAX;
	TAILQ_FOREACH(model, &registry->models, link)
	{
		if (!search_state(s, model) || search_rank(s, model) < 0 || !is_near(s, model))
			continue;
		uint32_t differences = key_differences(&s->want->key, &model->key, s->want->exact, NULL);
		if (differences < fewest) {
			fewest = differences;
			nearest = model;
		}
	}
	if (nearest == NULL)
		return IPCC_NOT_FOUND;
	if (err == NULL)
		return IPCC_MISMATCH;
	struct key_difference first = {0};
	key_differences(&s->want->key, &nearest->key, s->want->exact, &first);
	const char *expected = first.expected == NULL ? "(none)" : first.expected;
	const char *got = first.got == NULL ? "(none)" : first.got;
	char label[MODEL_LABEL_BYTES];
	return fail_mismatch(err, first.field, expected, got,
			     "%s differs in %u field%s; %s: expected %.200s, got %.200s. Publish the model with these "
			     "fields, or ask for those that it has",
			     model_label(nearest, label), fewest, fewest == 1 ? "" : "s", first.field, expected, got);
}

static int search_failed(const struct registry *registry, const struct search *s, struct ipcc_error *err)
{
	char there[512] = "";
	size_t length = 0;
	uint32_t more = 0;
	const struct model *model;
	if (err == NULL)
		return IPCC_NOT_FOUND;
	TAILQ_FOREACH(model, &registry->models, link)
	{
		if (!search_state(s, model) || search_rank(s, model) < 0)
			continue;
		char label[MODEL_LABEL_BYTES];
		model_label(model, label);
		if (length + strlen(label) + 3 > sizeof(there)) {
			more++;
			continue;
		}
		length +=
			(size_t)snprintf(there + length, sizeof(there) - length, "%s%s", length > 0 ? ", " : "", label);
	}
	const char *asked = s->want->text[0] != '\0' ? s->want->text : key_value(&s->want->key, "model");
	if (length == 0)
		return fail(err, IPCC_NOT_FOUND,
			    "no model %.200s: nothing is resident for you; load it with: ipc-cache load",
			    asked == NULL ? "with that key" : asked);
	char rest[32] = "";
	if (more > 0)
		snprintf(rest, sizeof(rest), " and %u more", more);
	return fail(err, IPCC_NOT_FOUND, "no model %.200s; resident for you: %s%s",
		    asked == NULL ? "with that key" : asked, there, rest);
}

/* It takes no new attach. */
static int search_draining(const struct model *model, struct ipcc_error *err)
{
	char label[MODEL_LABEL_BYTES];
	model_label(model, label);
	if (model->kept && model->keeper == NULL)
		return fail(err, IPCC_NOT_FOUND,
			    "%s is lost: its keeper, process %d, has ended, and the memory with it (%u leases left). "
			    "Load it again",
			    label, model->publisher_pid, model->lease_count);
	return fail(err, IPCC_NOT_FOUND,
		    "%s is evicted and takes no new attach; it goes with its last lease (%u left). Load it again",
		    label, model->lease_count);
}

/* It was there, and its keeper ended. */
static int search_lost(const struct registry *registry, const struct search *s, struct ipcc_error *err)
{
	const struct lost_model *lost = lost_find(&registry->lost, s->asker.peer->uid, s->want);
	if (lost == NULL)
		return IPCC_OK;
	return fail(err, IPCC_NOT_FOUND,
		    "model %.100s is lost: its keeper, process %d, has ended, and the memory with it. Load it again",
		    *lost->name ? lost->name : "without a name", lost->keeper);
}

static int search_run(const struct registry *registry, const struct search *s, struct model **found,
		      struct ipcc_error *err)
{
	int rc = search_ready(registry, s, found, err);
	if (rc != IPCC_NOT_FOUND)
		return rc;
	struct model *loading = search_state_match(registry, s, IPCC_MODEL_LOADING);
	if (loading != NULL) {
		char label[MODEL_LABEL_BYTES];
		*found = loading;
		if (err == NULL)
			return IPCC_BUSY;
		return fail(err, IPCC_BUSY, "%s is still being loaded by process %d; wait for it",
			    model_label(loading, label), loading->publisher_pid);
	}
	const struct model *draining = search_state_match(registry, s, IPCC_MODEL_DRAINING);
	if (draining != NULL && err != NULL)
		return search_draining(draining, err);
	if (err != NULL && search_lost(registry, s, err) != IPCC_OK)
		return IPCC_NOT_FOUND;
	rc = search_mismatch(registry, s, err);
	return rc != IPCC_NOT_FOUND ? rc : search_failed(registry, s, err);
}

int registry_select(const struct registry *registry, const struct policy *policy, struct asker asker,
		    const struct selection *selection, struct model **model, struct ipcc_error *err)
{
	struct search s = {.policy = policy, .asker = asker, .want = selection};
	return search_run(registry, &s, model, err);
}

int registry_select_visible(const struct registry *registry, const struct policy *policy, struct asker asker,
			    const struct selection *selection, struct model **model, struct ipcc_error *err)
{
	struct search s = {.policy = policy, .asker = asker, .want = selection, .visible = true};
	return search_run(registry, &s, model, err);
}
