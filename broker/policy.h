/*
 * Every decision about who may do what, in one place. Pure functions of the configuration, the peer that the kernel
 * named, and the model.
 *
 * The rules: the broker's own uid and root may always connect. Others need [access] attach, publish or evict. A model belongs to
 * the uid that published it; its owner may always attach and evict it. Somebody else's model is attachable only when its
 * publisher is root or trusted, made it visible to the asker, and [access] attach admits the asker; on a GPU [access]
 * attach_gpu must admit it too, since read-only is a promise there and no wall: by default nobody else may.
 */
#ifndef IPCC_BROKER_POLICY_H
#define IPCC_BROKER_POLICY_H

#include "broker/config.h"
#include "broker/peer.h"
#include "manifest/views.h"

struct policy {
	const struct config *config;
	uid_t self; /* the broker's effective uid */
};

/* Who asks: the peer and the socket through which its groups are found. */
struct asker {
	const struct peer *peer;
	int socket;
};

struct model;

/* The broker's own user, or root. */
bool policy_is_admin(const struct policy *policy, struct asker asker);

/* IPCC_REFUSED, with what to change, when not. */
int policy_connect(const struct policy *policy, struct asker asker, struct ipcc_error *err);
int policy_publish(const struct policy *policy, struct asker asker, enum ipcc_visibility visibility, gid_t visible_gid,
		   struct ipcc_error *err);
int policy_evict(const struct policy *policy, struct asker asker, const struct model *model, struct ipcc_error *err);

/* Models that may match for an asker, best first: its own, root's, a trusted publisher's; -1: never. */
#define POLICY_RANKS 3
int policy_rank(const struct policy *policy, struct asker asker, const struct model *model);

/* May the asker see that the model exists? Whoever may attach it, the broker's uid and root, and who may evict. */
bool policy_visible(const struct policy *policy, struct asker asker, const struct model *model);

#endif
