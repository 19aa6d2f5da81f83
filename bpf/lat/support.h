/* What the machine must have, and a sentence for each thing that it may lack. */
#ifndef LAT_SUPPORT_H
#define LAT_SUPPORT_H

#include "bpf/lat/lat.h"

/* Privileges; with `kernel`, BTF; a kernel that can tell a probe's cookie. LAT_NO_PRIVILEGE or LAT_NO_SUPPORT. */
int support_check(bool kernel, struct lat_error *err);
/* What a failure with that errno most likely means. Returns the status. */
int support_explain(int error, const char *what, struct lat_error *err);
/* "block/block_rq_issue": is it there? "": is tracefs? */
bool support_has_tracepoint(const char *name);

/* Keeps the first errno of attaching to a probe. */
void support_note(int error);
int support_noted(void);

#endif
