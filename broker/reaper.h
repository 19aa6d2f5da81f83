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

#include <sys/types.h>

/* Take over *fd and leave -1 there. From the loop's thread only. `uid` chose what the fd is: one uid's fds never occupy all
 * threads. */
void reaper_close_memory(int *fd);
void reaper_close_foreign(int *fd, uid_t uid);

/* Foreign fds that are not closed yet: of all uids, which count against the broker's fd limit; and of one, which may not
 * publish above REAPER_MAX_FOREIGN: only who wants to block us gets there. */
#define REAPER_MAX_FOREIGN 256
unsigned reaper_foreign_left(void);
unsigned reaper_foreign_left_of(uid_t uid);

/* Waits until all memory is freed, and a moment for the rest; ends the threads. */
void reaper_stop(void);

#endif
