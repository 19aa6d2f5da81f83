/*
 * The last kept models whose keeper ended, so that who asks for one is told why it is not there: only ever a message, and a
 * bounded number of them.
 */
#ifndef IPCC_BROKER_LOST_H
#define IPCC_BROKER_LOST_H

#include "broker/link/wire.h"

#define LOST_MAX 16

struct lost_model {
	uid_t owner;
	pid_t keeper;
	char *name; /* NULL: this place is free */
	struct key key;
};

struct lost {
	struct lost_model models[LOST_MAX];
	uint32_t next; /* the place that is overwritten next */
};

struct model;

/* Without memory for it the model is not remembered. */
void lost_note(struct lost *lost, const struct model *model);
/* The model is there again. */
void lost_forget(struct lost *lost, const struct model *model);
/* The one of `owner` that is asked for, or NULL. */
const struct lost_model *lost_find(const struct lost *lost, uid_t owner, const struct selection *want);
void lost_fini(struct lost *lost);

#endif
