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

#define PUBLISH_MAX_FIELDS 4

/* The key of a checkpoint: device, layout and model, the model being its real path; and the selection, if it is not all
 * (NULL). Points to what it is given. Returns how many fields there are. */
uint32_t publish_key(const struct checkpoint *cp, const char *device, const char *selection,
		     struct ipcc_field fields[PUBLISH_MAX_FIELDS]);

struct publish_report {
	struct fill_report fill;
	uint64_t huge_bytes; /* of the segments, that lie in huge pages */
	uint64_t bytes_read;
	uint64_t generation;
	uint64_t ready_ns;	   /* clock_ns() at the commit: what follows nobody waits for */
	struct ipcc_publish *kept; /* with options->keep: to be kept, and freed, by the caller */
};

/* `selection` is what the plan was made with. `options` says everything but the segments, which come from the plan. Returns the code of the step that failed; then
 * the broker keeps nothing, and `client` can only be closed, except after IPCC_EXISTS and IPCC_BUSY. */
int publish_checkpoint(struct ipcc_client *client, const struct checkpoint *cp, const struct plan *plan,
		       const struct selection *selection, const struct ipcc_publish_options *options,
		       const struct fill_options *fill, struct publish_report *report, struct ipcc_error *err);

#endif
