/*
 * The daemon's one thread: an epoll loop over the listening socket, a signalfd and the connections.
 *
 * Nothing in it blocks and no turn of it takes longer than about a millisecond: messages are handled one per connection
 * and turn, drafts are copied and validated in slices (draft.h), memory is freed by the reaper.
 */
#ifndef IPCC_BROKER_SERVER_H
#define IPCC_BROKER_SERVER_H

#include "broker/account.h"
#include "broker/config.h"
#include "broker/journal.h"
#include "broker/policy.h"
#include "broker/registry.h"

#include <sys/queue.h>

struct counters {
	uint64_t accepted;
	uint64_t refused;
	uint64_t attaches;
	uint64_t mismatches;
	uint64_t commits;
	uint64_t evictions;
};

struct server {
	const struct config *config;
	struct policy policy;
	struct accounts accounts;
	struct registry registry;
	struct journal *journal;
	struct counters counters;
	uint8_t instance[16];
	uint64_t started_ns; /* CLOCK_MONOTONIC */
	uint32_t lease_count;

	int epoll_fd;
	int listen_fd;
	int signal_fd;
	int spare_fd; /* given up for a moment to turn a connection away when there is no other fd */

	uint64_t next_deadline_ms; /* the earliest that a connection may have; UINT64_MAX: none */
	bool registry_changed;	   /* parked requests are to be tried again */
	struct conn *retry_next;   /* where the present pass over them goes on; NULL: none is under way */
	uint64_t listen_again_ms;  /* accepting pauses until then; UINT64_MAX: it does not */
	bool stopping;
	bool overflow_is_real; /* identity.h: found out at the start, when /proc can still be read */
	bool fds_refused;      /* the kernel refuses fds on connections that have no claim */

	TAILQ_HEAD(, conn) conns;  /* the dead ones too, so that closing one while walking over them is safe */
	TAILQ_HEAD(, conn) dead;   /* freed at the end of the turn, when no event can name them */
	TAILQ_HEAD(, conn) ending; /* what hangs on them is still to go; empty but within conn_close */
	bool is_ending;
	TAILQ_HEAD(, conn) unread; /* were sent fds that they may not have read yet */
	TAILQ_HEAD(, conn) drafts; /* in the order of arrival */
	struct conn *drafting;	   /* whose draft is being copied and validated, or NULL */
	uid_t drafted_uid;	   /* whose it was last: others come first */

	uint64_t refusals_logged_ms; /* when the last refused connection was logged */
	uint64_t refusals_unlogged;  /* since then: anybody could fill the log otherwise, and block us on a full pipe */

	/* Where events worth a line go; set by main. */
	void (*log)(const char *format, ...) __attribute__((format(printf, 1, 2)));
};

/* Takes over `listen_fd`. Blocks SIGTERM and SIGINT. */
int server_init(struct server *server, const struct config *config, int listen_fd, void (*log)(const char *format, ...),
		struct ipcc_error *err);
/* Until SIGTERM or SIGINT. */
int server_run(struct server *server, struct ipcc_error *err);
void server_fini(struct server *server);

/* May fds be sent over this connection? (SO_PASSRIGHTS) */
void server_allow_fds(int socket, bool allowed);

/* Makes sure that the loop wakes up in time. */
void server_note_deadline(struct server *server, uint64_t deadline_ms);

uint64_t now_ms(void);		/* CLOCK_MONOTONIC */
uint64_t now_realtime_ns(void); /* CLOCK_REALTIME */

#endif
