/*
 * Publishes a checkpoint: claims the key, fills the segments, describes tensors and sources, commits. The loader knows no
 * broker and the client library knows no files; here they meet.
 */
#ifndef IPCC_TOOLS_PUBLISH_H
#define IPCC_TOOLS_PUBLISH_H

#include "broker/client/ipc_cache.h"
#include "loader/checkpoint.h"
#include "loader/fill.h"
#include "loader/plan.h"

#define PUBLISH_FIELDS 3

/* The key of a checkpoint: device, layout and model, the model being its real path. Points into the checkpoint. */
void publish_key(const struct checkpoint *cp, const char *device, struct ipcc_field fields[PUBLISH_FIELDS]);

/* `options` says everything but the segments, which come from the plan. Returns the code of the step that failed; then
 * the broker keeps nothing, and `client` can only be closed, except after IPCC_EXISTS and IPCC_BUSY. */
int publish_checkpoint(struct ipcc_client *client, const struct checkpoint *cp, const struct plan *plan,
		       const struct ipcc_publish_options *options, const struct fill_options *fill,
		       uint64_t *generation, struct ipcc_error *err);

#endif
