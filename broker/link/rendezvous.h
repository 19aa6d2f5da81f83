/*
 * Where broker and client meet: the directory, its rules, and the socket in it, found without races and without the
 * 108-byte limit of sun_path (through /proc/self/fd).
 */
#ifndef IPCC_RENDEZVOUS_H
#define IPCC_RENDEZVOUS_H

#include "manifest/error.h"

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

/* $IPC_CACHE_DIR, else /run/ipc-cache if it exists, else /tmp/vllm_ipc_cache_uid_<UID>. */
void rendezvous_client_dir(char dir[PATH_MAX]);
/* $IPC_CACHE_DIR, else $RUNTIME_DIRECTORY (systemd's), else /tmp/vllm_ipc_cache_uid_<UID>. */
void rendezvous_broker_dir(char dir[PATH_MAX]);

/* Opens `dir` with O_PATH, and refuses what is not a directory, is a link at its end, is writable by group or others, or
 * is owned by none of `trusted`. IPCC_NO_BROKER when it is not there, IPCC_REFUSED otherwise. */
int rendezvous_open(const char *dir, const uid_t *trusted, unsigned trusted_count, int *dir_fd, struct ipcc_error *err);

/* A connected socket to the broker in that directory, authenticated: the peer's uid is one of `trusted`. Waits at most
 * `timeout_ms` (negative: for ever) while the broker's queue is full.
 * IPCC_NO_BROKER: nobody listens; IPCC_REFUSED: a link, no socket, forbidden, or not trusted; IPCC_TIMEOUT. */
int rendezvous_connect(int dir_fd, const char *dir, const uid_t *trusted, unsigned trusted_count, int timeout_ms,
		       int *socket_fd, struct ipcc_error *err);

/* A bound and listening, non-blocking socket of that mode; a stale one is replaced (the caller holds the directory's
 * lock). */
int rendezvous_listen(int dir_fd, const char *dir, mode_t mode, int *socket_fd, struct ipcc_error *err);

#endif
