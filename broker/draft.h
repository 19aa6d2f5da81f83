/*
 * A draft manifest on its way to becoming a model's: copied out of the publisher's memfd, validated, compared with the
 * claim, stamped and sealed, all in slices of about a millisecond per turn of the loop.
 *
 * One draft at a time is worked on, so that at most one is in memory; then one of another uid if any waits, so that no
 * user's drafts keep another's waiting for more than one.
 */
#ifndef IPCC_BROKER_DRAFT_H
#define IPCC_BROKER_DRAFT_H

#include "broker/conn.h"

/* Takes over *fd, on success only, for the claim of `conn`; the reply to `request` is sent when the work is done. */
int draft_start(struct conn *conn, int *fd, uint64_t bytes, uint32_t request, struct ipcc_error *err);
/* One slice of the draft whose turn it is, if there is any. */
void draft_step(struct server *server);
/* The connection ends. */
void draft_cancel(struct conn *conn);

#endif
