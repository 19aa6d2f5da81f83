/*
 * Ctrl-C: the first SIGINT, SIGTERM or SIGHUP asks the work to end, so that its end can be reported; a second one ends
 * the process at once. Either way the broker keeps nothing of an unfinished publication.
 */
#ifndef IPCC_TOOLS_INTERRUPT_H
#define IPCC_TOOLS_INTERRUPT_H

#include <stdatomic.h>

struct ipcc_client;

/* From now on a signal sets the flag that is returned and cancels the client's calls; NULL ends that. The client must
 * outlive it. */
const atomic_bool *interrupt_watch(struct ipcc_client *client);

#endif
