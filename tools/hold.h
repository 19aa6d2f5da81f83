/* Stays attached until told to end: the part of an engine that matters to the broker. */
#ifndef IPCC_TOOLS_HOLD_H
#define IPCC_TOOLS_HOLD_H

#include "broker/client/ipc_cache.h"

struct hold {
	int signal_fd;
};

/* From here on SIGINT, SIGTERM and SIGHUP wait for hold_wait; call it before anybody learns that the model is held. */
int hold_prepare(struct hold *h, struct ipcc_error *err);

/* Waits for one of those signals, or for the end of standard input if that is a pipe or a socket (a shell's background
 * job reads /dev/null, whose end means nothing). IPCC_REFUSED: the model was evicted by force; IPCC_NOT_FOUND: its keeper ended. When the broker goes away
 * the mappings stay valid, so the waiting goes on. */
int hold_wait(struct hold *h, struct ipcc_client *client, struct ipcc_model *model, struct ipcc_error *err);

#endif
