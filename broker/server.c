/*
 * The event loop; see server.h.
 *
 * Order of a turn: events, one slice of a draft, deadlines, parked requests, then the dead are freed. An event names its
 * connection by pointer, so nothing may be freed before all events of the turn are handled.
 */
#include "broker/server.h"

#include "bpf/probes.h"
#include "broker/conn.h"
#include "broker/conn_message.h"
#include "broker/draft.h"
#include "broker/lifecycle.h"
#include "broker/link/identity.h"
#include "broker/reaper.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* since Linux 6.16 */
#endif

/* So many events, and so many new connections, before everything else gets its turn. */
#define EVENTS_PER_TURN	 64
#define ACCEPTS_PER_TURN 16
#define RETRIES_PER_TURN 16
#define LISTEN_PAUSE_MS	 100
/* Below this not even one full message of fds could be received beside a few models. */
#define MIN_FDS 512

uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

uint64_t now_realtime_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void server_note_deadline(struct server *server, uint64_t deadline_ms)
{
	if (deadline_ms < server->next_deadline_ms)
		server->next_deadline_ms = deadline_ms;
}

static int raise_fd_limit(uint32_t *limit, struct ipcc_error *err)
{
	struct rlimit files;
	if (getrlimit(RLIMIT_NOFILE, &files) != 0)
		return fail_errno(err, errno, "cannot read RLIMIT_NOFILE");
	files.rlim_cur = files.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &files) != 0)
		return fail_errno(err, errno, "cannot raise RLIMIT_NOFILE to its hard limit");
	if (files.rlim_cur < MIN_FDS)
		return fail(err, IPCC_REFUSED,
			    "RLIMIT_NOFILE is %lu; the broker needs at least %d (systemd: LimitNOFILE=)",
			    (unsigned long)files.rlim_cur, MIN_FDS);
	*limit = files.rlim_cur > UINT32_MAX ? UINT32_MAX : (uint32_t)files.rlim_cur;
	return IPCC_OK;
}

static int watch(struct server *server, int fd, void *what, struct ipcc_error *err)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};
	if (epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
		return fail_errno(err, errno, "cannot watch a file descriptor");
	return IPCC_OK;
}

static int open_fds(struct server *server, struct ipcc_error *err)
{
	sigset_t signals;
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	if (sigprocmask(SIG_BLOCK, &signals, NULL) != 0)
		return fail_errno(err, errno, "cannot block signals");
	server->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
	server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	server->spare_fd = fcntl(server->epoll_fd, F_DUPFD_CLOEXEC, 0);
	if (server->signal_fd < 0 || server->epoll_fd < 0 || server->spare_fd < 0)
		return fail_errno(err, errno, "cannot open the broker's own file descriptors");
	if (getrandom(server->instance, sizeof(server->instance), 0) != sizeof(server->instance))
		return fail_errno(err, errno, "cannot get random bytes");
	server->journal = journal_new(lifecycle_snapshot, server, err);
	if (server->journal == NULL)
		return IPCC_FAILED;
	/* New connections inherit it: who publishes nothing cannot make us close fds of its choice. */
	server_allow_fds(server->listen_fd, false);
	int value;
	socklen_t length = sizeof(value);
	server->fds_refused =
		getsockopt(server->listen_fd, SOL_SOCKET, SO_PASSRIGHTS, &value, &length) == 0 && value == 0;
	int rc = watch(server, server->listen_fd, &server->listen_fd, err);
	if (rc == IPCC_OK)
		rc = watch(server, server->signal_fd, &server->signal_fd, err);
	return rc;
}

int server_init(struct server *server, const struct config *config, int listen_fd, void (*log)(const char *format, ...),
		struct ipcc_error *err)
{
	*server = (struct server){
		.config = config,
		.policy = {.config = config, .self = geteuid()},
		.started_ns = now_ms() * 1000000,
		.overflow_is_real = identity_maps_everybody(),
		.epoll_fd = -1,
		.listen_fd = listen_fd,
		.signal_fd = -1,
		.spare_fd = -1,
		.next_deadline_ms = UINT64_MAX,
		.listen_again_ms = UINT64_MAX,
		.log = log,
	};
	TAILQ_INIT(&server->registry.models);
	TAILQ_INIT(&server->conns);
	TAILQ_INIT(&server->dead);
	TAILQ_INIT(&server->ending);
	TAILQ_INIT(&server->unread);
	TAILQ_INIT(&server->drafts);
	uint32_t fd_limit = 0;
	int rc = raise_fd_limit(&fd_limit, err);
	accounts_init(&server->accounts, config, fd_limit);
	if (rc == IPCC_OK)
		rc = open_fds(server, err);
	if (rc != IPCC_OK)
		server_fini(server);
	return rc;
}

static void listen_again(struct server *server, bool again)
{
	struct epoll_event event = {.events = again ? EPOLLIN : 0, .data.ptr = &server->listen_fd};
	epoll_ctl(server->epoll_fd, EPOLL_CTL_MOD, server->listen_fd, &event);
	server->listen_again_ms = UINT64_MAX;
}

/* With no fd left, accept fails and the connection would wait, and wake us, for ever: turn it away with the spare. */
static void turn_away(struct server *server)
{
	struct ipcc_error err;
	struct message message;
	fd_close(&server->spare_fd);
	int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0 && errno == ENFILE) { /* the whole machine's table is full: asking again at once would only spin */
		listen_again(server, false);
		server->listen_again_ms = now_ms() + LISTEN_PAUSE_MS;
		server_note_deadline(server, server->listen_again_ms);
	}
	if (fd >= 0) {
		fail(&err, IPCC_REFUSED, "the broker is out of file descriptors; raise its LimitNOFILE");
		message_error(&message, MESSAGE_GOODBYE, 0, &err);
		wire_send(fd, message.bytes, message.length, NULL, 0);
		fd_close(&fd);
		PROBE_CONNECTION_REFUSED(0, 0, 0, err.code, err.message);
		server->counters.refused++;
	}
	server->spare_fd = fcntl(server->epoll_fd, F_DUPFD_CLOEXEC, 0);
}

static void accept_some(struct server *server)
{
	for (unsigned i = 0; i < ACCEPTS_PER_TURN; i++) {
		int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0)
			conn_accept(server, fd);
		else if (errno == EMFILE || errno == ENFILE)
			turn_away(server);
		else if (errno != EINTR && errno != ECONNABORTED)
			return;
	}
}

void server_allow_fds(int socket, bool allowed)
{
	int value = allowed;
	/* Older kernels do not know it, and let everybody send fds. */
	setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &value, sizeof(value));
}

static void handle_event(struct server *server, const struct epoll_event *event)
{
	struct signalfd_siginfo info;
	if (event->data.ptr == &server->listen_fd)
		accept_some(server);
	else if (event->data.ptr == &server->signal_fd)
		server->stopping = read(server->signal_fd, &info, sizeof(info)) == sizeof(info);
	else
		conn_event(event->data.ptr, event->events);
}

/* Ends come first: epoll hands out a connection that was just served before one that ended since, and what the dead held
 * must not refuse, or be handed to, somebody who asked after the end. */
static void handle_events(struct server *server, const struct epoll_event *events, int count)
{
	for (int i = 0; i < count; i++)
		if (events[i].events & EPOLLRDHUP)
			handle_event(server, &events[i]);
	for (int i = 0; i < count; i++)
		if (!(events[i].events & EPOLLRDHUP))
			handle_event(server, &events[i]);
}

static void expire(struct server *server)
{
	uint64_t now = now_ms();
	struct conn *conn;
	if (now < server->next_deadline_ms)
		return;
	server->next_deadline_ms = UINT64_MAX;
	if (server->listen_again_ms <= now)
		listen_again(server, true);
	server_note_deadline(server, server->listen_again_ms);
	TAILQ_FOREACH(conn, &server->conns, link)
	{
		if (!conn->dead && conn->deadline_ms <= now)
			conn_expired(conn);
		if (!conn->dead)
			server_note_deadline(server, conn->deadline_ms);
	}
}

/* A few per turn, however many wait. What changes the registry meanwhile starts another pass after this one. */
static void retry_parked(struct server *server)
{
	if (server->retry_next == NULL && server->registry_changed) {
		server->registry_changed = false;
		server->retry_next = TAILQ_FIRST(&server->conns);
	}
	for (unsigned left = RETRIES_PER_TURN; server->retry_next != NULL && left > 0;) {
		struct conn *conn = server->retry_next;
		server->retry_next = TAILQ_NEXT(conn, link);
		if (conn->parked.bytes == NULL)
			continue;
		conn_retry(conn, false);
		left--;
	}
}

static int wait_ms(const struct server *server)
{
	if (!TAILQ_EMPTY(&server->drafts) || server->registry_changed || server->retry_next != NULL)
		return 0;
	if (server->next_deadline_ms == UINT64_MAX)
		return -1;
	uint64_t now = now_ms();
	if (server->next_deadline_ms <= now)
		return 0;
	uint64_t left = server->next_deadline_ms - now;
	return left > 60000 ? 60000 : (int)left;
}

static void free_dead(struct server *server)
{
	struct conn *conn;
	while ((conn = TAILQ_FIRST(&server->dead)) != NULL) {
		TAILQ_REMOVE(&server->dead, conn, dead_link);
		if (server->retry_next == conn)
			server->retry_next = TAILQ_NEXT(conn, link);
		TAILQ_REMOVE(&server->conns, conn, link);
		conn_free(conn);
	}
}

int server_run(struct server *server, struct ipcc_error *err)
{
	struct epoll_event events[EVENTS_PER_TURN];
	while (!server->stopping) {
		int count = epoll_wait(server->epoll_fd, events, EVENTS_PER_TURN, wait_ms(server));
		if (count < 0 && errno != EINTR)
			return fail_errno(err, errno, "epoll_wait");
		handle_events(server, events, count);
		draft_step(server);
		expire(server);
		retry_parked(server);
		free_dead(server);
	}
	return IPCC_OK;
}

void server_fini(struct server *server)
{
	struct model *model;
	struct conn *conn;
	fd_close(&server->listen_fd); /* first: freeing the memory may take a while, and nobody should wait for that */
	TAILQ_FOREACH(conn, &server->conns, link)
	conn_close(conn);
	free_dead(server);
	while ((model = TAILQ_FIRST(&server->registry.models)) != NULL)
		lifecycle_remove(server, model);
	reaper_stop();
	journal_free(server->journal);
	lost_fini(&server->registry.lost);
	accounts_fini(&server->accounts);
	fd_close(&server->signal_fd);
	fd_close(&server->epoll_fd);
	fd_close(&server->spare_fd);
}
