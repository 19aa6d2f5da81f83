/*
 * Closes, in threads of its own, the fds whose close may take long: in the loop's thread everybody would wait for it.
 *
 *	memory	 memfds that were checked: the last close frees their pages, about 60 ms per GiB
 *	foreign	 whatever a peer chose to send: closing a file of a FUSE mount waits for its server, a socket may linger
 *
 * The lanes do not share threads, so that a foreign fd that never closes cannot keep memory from being freed. The threads
 * touch nothing but the fds given to them.
 */
#ifndef IPCC_BROKER_REAPER_H
#define IPCC_BROKER_REAPER_H

/* Take over *fd and leave -1 there. From the loop's thread only. */
void reaper_close_memory(int *fd);
void reaper_close_foreign(int *fd);

/* Foreign fds that are not closed yet. They count against the broker's fd limit, and publishing stops above
 * REAPER_MAX_FOREIGN: only a peer that wants to block us gets there. */
#define REAPER_MAX_FOREIGN 1024
unsigned reaper_foreign_left(void);

/* Waits until all memory is freed, and a moment for the rest; ends the threads. */
void reaper_stop(void);

#endif
