/*
 * Several threads for one piece of work. The caller's own thread is one of them, so a thread that cannot be created costs
 * speed and nothing else.
 */
#ifndef IPCC_MANIFEST_WORKERS_H
#define IPCC_MANIFEST_WORKERS_H

#define WORKERS_MAX 64

/* Calls work(context) in up to `threads` threads (at most WORKERS_MAX) and returns when all have returned. Signals stay the
 * caller's business, but for SIGBUS, which is the thread's that makes the access. Thread-safe. */
void workers_run(unsigned threads, void (*work)(void *context), void *context);

#endif
