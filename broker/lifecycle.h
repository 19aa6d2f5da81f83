/*
 * How a model goes, in whatever state it is, and what of a model's life stands in the journal. (How it comes is
 * request_publish.c's.)
 */
#ifndef IPCC_BROKER_LIFECYCLE_H
#define IPCC_BROKER_LIFECYCLE_H

#include "broker/server.h"

/* No new attach from now on; gone with the last lease, at once if there is none. */
void lifecycle_drain(struct server *server, struct model *model);
/* Drains, closes the fds, and tells the holders. The bytes stay charged while somebody may map them. */
void lifecycle_drop(struct server *server, struct model *model);
/* The keeper's connection is over, and with it the memory: no attach finds the model any more, and its holders are told. */
void lifecycle_lose(struct server *server, struct model *model);
/* Ends a model of any state: fds to the reaper, charge back, waiters told, and the keeper, if it has one, may free
 * the memory. Leases must be gone. */
void lifecycle_remove(struct server *server, struct model *model);

/* Journal entries of a model, and of the lease that `conn` holds. */
int journal_model(struct journal *journal, const struct model *model, enum journal_kind kind, struct ipcc_error *err);
int journal_lease(struct journal *journal, const struct conn *conn, struct ipcc_error *err);
/* The whole living state, for journal_new; `context` is the server. */
void lifecycle_snapshot(struct journal *journal, void *context);

#endif
