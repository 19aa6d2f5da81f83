/*
 * Once the broker listens, it needs few system calls: everything else fails with EPERM from then on. It can start threads
 * but no processes, open no file, and create no socket. What was not foreseen fails, and does not kill: the broker's death
 * would cost more than a refused call.
 */
#ifndef IPCC_BROKER_SANDBOX_H
#define IPCC_BROKER_SANDBOX_H

#include "manifest/error.h"

/* Irrevocable, for all threads. Builds with sanitizers or coverage have none: their run-time libraries open files. */
int sandbox_enter(struct ipcc_error *err);

#endif
