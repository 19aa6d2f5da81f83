/* The access rules; see policy.h. */
#include "broker/policy.h"

#include "broker/model.h"
#include "broker/segment.h"
#include "manifest/fail.h"

static bool listed(const struct principals *who, struct asker asker)
{
	if (who->all)
		return true;
	for (uint32_t i = 0; i < who->uid_count; i++)
		if (who->uids[i] == asker.peer->uid)
			return true;
	for (uint32_t i = 0; i < who->gid_count; i++)
		if (peer_in_group(asker.socket, asker.peer, who->gids[i]))
			return true;
	return false;
}

bool policy_is_admin(const struct policy *policy, struct asker asker)
{
	return asker.peer->uid == 0 || asker.peer->uid == policy->self;
}

int policy_connect(const struct policy *policy, struct asker asker, struct ipcc_error *err)
{
	const struct config *config = policy->config;
	if (policy_is_admin(policy, asker) || listed(&config->attach, asker) || listed(&config->publish, asker) ||
	    listed(&config->evict, asker))
		return IPCC_OK;
	return fail(err, IPCC_REFUSED,
		    "this broker does not serve uid %u; list it under attach, publish or evict in [access] of its "
		    "configuration",
		    asker.peer->uid);
}

int policy_publish(const struct policy *policy, struct asker asker, enum ipcc_visibility visibility, gid_t visible_gid,
		   struct ipcc_error *err)
{
	if (!policy_is_admin(policy, asker) && !listed(&policy->config->publish, asker))
		return fail(
			err, IPCC_REFUSED,
			"uid %u may not publish here; list it under publish in [access] of the broker's configuration",
			asker.peer->uid);
	if (visibility > IPCC_VISIBLE_ALL)
		return fail(err, IPCC_PROTOCOL, "visibility %u is not known", visibility);
	if (visibility == IPCC_VISIBLE_GROUP && asker.peer->uid != 0 &&
	    !peer_in_group(asker.socket, asker.peer, visible_gid))
		return fail(err, IPCC_REFUSED, "you are no member of group %u, so you cannot publish for it",
			    visible_gid);
	return IPCC_OK;
}

int policy_rank(const struct policy *policy, struct asker asker, const struct model *model)
{
	uid_t owner = model->account->uid;
	if (owner == asker.peer->uid)
		return 0;
	bool root = owner == 0, trusted = false;
	for (uint32_t i = 0; i < policy->config->trusted.uid_count; i++)
		trusted = trusted || policy->config->trusted.uids[i] == owner;
	if (!root && !trusted)
		return -1;
	if (!policy_is_admin(policy, asker) && !listed(&policy->config->attach, asker))
		return -1;
	/* Who holds a GPU's fd can write to it. */
	if (!segment_is_host(&model->key) && !listed(&policy->config->attach_gpu, asker))
		return -1;
	bool shown =
		model->visibility == IPCC_VISIBLE_ALL || (model->visibility == IPCC_VISIBLE_GROUP &&
							  peer_in_group(asker.socket, asker.peer, model->visible_gid));
	return !shown ? -1 : root ? 1 : 2;
}

bool policy_visible(const struct policy *policy, struct asker asker, const struct model *model)
{
	return policy_is_admin(policy, asker) || listed(&policy->config->evict, asker) ||
	       policy_rank(policy, asker, model) >= 0;
}

int policy_evict(const struct policy *policy, struct asker asker, const struct model *model, struct ipcc_error *err)
{
	if (model->account->uid == asker.peer->uid || policy_is_admin(policy, asker) ||
	    listed(&policy->config->evict, asker))
		return IPCC_OK;
	return fail(err, IPCC_REFUSED,
		    "the model belongs to uid %u; only it, the broker's user, root, or who is listed under evict in "
		    "[access] may evict it",
		    model->account->uid);
}
