/* What `load` shows: a plan that is not carried out, and how a load was done. */
#ifndef IPCC_TOOLS_SHOW_LOAD_H
#define IPCC_TOOLS_SHOW_LOAD_H

#include "tools/output.h"
#include "tools/publish.h"

/* The plan as text, or with `json` as one document: segments, reads and tensors. */
void show_plan(const struct checkpoint *cp, const struct plan *plan, const struct selection *selection, bool json);

/* How the bytes came, in facts; and the same as an object. */
void show_report(const struct publish_report *report);
json_t *report_json(const struct publish_report *report);

#endif
