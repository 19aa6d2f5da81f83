/*
 * All models of the broker, and how one is found: by owner and key alone. What is looked up is always seen through the
 * policy, so that nobody learns of a model that is not theirs to see.
 */
#ifndef IPCC_BROKER_REGISTRY_H
#define IPCC_BROKER_REGISTRY_H

#include "broker/link/wire.h"
#include "broker/lost.h"
#include "broker/model.h"
#include "broker/policy.h"

struct registry {
	TAILQ_HEAD(model_list, model) models; /* by id */
	uint64_t last_id;
	uint64_t last_generation;
	struct lost lost; /* for messages alone */
};

/* The newest model of that owner and key in that state, or NULL. */
struct model *registry_find(const struct registry *registry, uid_t owner, const struct key *key, uint32_t state);
struct model *registry_by_id(const struct registry *registry, uint64_t id);

/* The model that `asker` means and may attach. IPCC_BUSY: it is still loading, and stored. IPCC_MISMATCH: the nearest one
 * differs. IPCC_REFUSED: several match. IPCC_NOT_FOUND: the message says what is there. */
int registry_select(const struct registry *registry, const struct policy *policy, struct asker asker,
		    const struct selection *selection, struct model **model, struct ipcc_error *err);

/* The same among the models that the asker may see, draining ones too: for eviction. */
int registry_select_visible(const struct registry *registry, const struct policy *policy, struct asker asker,
			    const struct selection *selection, struct model **model, struct ipcc_error *err);

#endif
