/*
 * Closes segment fds in a thread of its own. The last close of a memfd frees its pages, about 60 ms per GiB: in the
 * broker's only other thread everybody would wait for it.
 *
 * The thread touches nothing but the fds given to it.
 */
#ifndef IPCC_BROKER_REAPER_H
#define IPCC_BROKER_REAPER_H

/* Starts the thread (signals blocked in it). 0 or a negative errno. */
int reaper_start(void);
/* Takes over *fd and leaves -1 there. Closes at once when the thread is not running or far behind. */
void reaper_close(int *fd);
/* Waits until everything is closed and ends the thread. */
void reaper_stop(void);

#endif
