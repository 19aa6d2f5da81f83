/*
 * Reading a mapped file that somebody may truncate, or whose disk may die: the access is a SIGBUS, which guard_run turns
 * into a return value. The handler is installed while any fill runs and passes on every SIGBUS that is not ours.
 */
#ifndef IPCC_LOADER_GUARD_H
#define IPCC_LOADER_GUARD_H

#include <stddef.h>

/* Before and after; counted. While installed, nobody else may change the process's SIGBUS action. Thread-safe. */
void guard_install(void);
void guard_remove(void);

/* Calls work(context) and returns what it returns, or -EFAULT as soon as an access to [base, base + bytes) fails: then the
 * call was left in its middle, so it must own nothing that needs releasing. SIGBUS must not be blocked in the thread. */
int guard_run(const void *base, size_t bytes, int (*work)(void *context), void *context);

#endif
