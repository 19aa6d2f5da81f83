/* What `load` shows: a plan that is not carried out, and how a load came out. */
#ifndef IPCC_TOOLS_SHOW_LOAD_H
#define IPCC_TOOLS_SHOW_LOAD_H

#include "tools/output.h"
#include "tools/publish.h"

/* The plan as text, or with `json` as one document: segments, reads and tensors. */
void show_plan(const struct checkpoint *cp, const struct plan *plan, const struct selection *selection, bool json);

/* A load that has ended, or found the model resident. */
struct load_outcome {
	const char *name;
	const char *key_id;
	bool resident; /* it was there before */
	struct publish_report report;
	uint64_t generation;
	uint32_t tensors;
	uint32_t segments;
	uint64_t bytes;
	uint64_t duration_ns;
};

/* The outcome as facts, or with `json` as one document. */
void show_outcome(const struct load_outcome *o, bool json);

#endif
