/*
 * Finding the broker's directory and socket; see rendezvous.h.
 *
 * Invariant: what was checked is what is used. Directory and socket are opened with O_PATH|O_NOFOLLOW first, checked on
 * that fd, and reached through /proc/self/fd from then on, so nobody can swap them in between.
 */
#include "broker/link/rendezvous.h"

#include "broker/link/identity.h"
#include "broker/protocol.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define SYSTEM_DIR "/run/ipc-cache"
/* The seed package's directory; a user who changes over finds everything where it was. */
#define USER_DIR "/tmp/vllm_ipc_cache_uid_%u"

static bool dir_from_environment(const char *variable, char dir[PATH_MAX])
{
	const char *value = secure_getenv(variable);
	if (value == NULL || *value == '\0')
		return false;
	snprintf(dir, PATH_MAX, "%s", value);
	return true;
}

void rendezvous_client_dir(char dir[PATH_MAX])
{
	if (dir_from_environment("IPC_CACHE_DIR", dir))
		return;
	snprintf(dir, PATH_MAX, "%s", SYSTEM_DIR);
	if (access(dir, F_OK) != 0)
		snprintf(dir, PATH_MAX, USER_DIR, geteuid());
}

void rendezvous_broker_dir(char dir[PATH_MAX])
{
	if (dir_from_environment("IPC_CACHE_DIR", dir))
		return;
	if (!dir_from_environment("RUNTIME_DIRECTORY", dir))
		snprintf(dir, PATH_MAX, USER_DIR, geteuid());
	dir[strcspn(dir, ":")] = '\0'; /* systemd lists several with colons; the first is ours */
}

static bool is_trusted(uid_t uid, const uid_t *trusted, unsigned count)
{
	bool found = false;
	for (unsigned i = 0; i < count; i++)
		found = found || trusted[i] == uid;
	/* In a namespace that does not map us we would look like everybody else whom it does not map. */
	return found && (uid != IDENTITY_OVERFLOW || identity_maps_everybody());
}

int rendezvous_open(const char *dir, const uid_t *trusted, unsigned trusted_count, int *dir_fd, struct ipcc_error *err)
{
	cleanup_fd int fd = open(dir, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;
	if (fd < 0 && errno == ENOENT)
		return fail(err, IPCC_NO_BROKER,
			    "no broker: %s does not exist; start ipc-cached, or set IPC_CACHE_DIR to its directory",
			    dir);
	if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
		return fail(err, IPCC_REFUSED,
			    "%s is a link or no directory, which a broker's directory never is; remove it", dir);
	if (fd < 0 || fstat(fd, &st) != 0)
		return fail(err, IPCC_REFUSED,
			    "cannot open the broker's directory %s: %s; for another broker set IPC_CACHE_DIR to its "
			    "directory",
			    dir, strerror(errno));
	if (!is_trusted(st.st_uid, trusted, trusted_count))
		return fail(err, IPCC_REFUSED,
			    "%s belongs to uid %u, who is neither you nor root nor trusted (IPC_CACHE_TRUST_UID); "
			    "nothing in it is used",
			    dir, st.st_uid);
	if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
		return fail(err, IPCC_REFUSED,
			    st.st_mode & S_ISVTX
				    ? "%s is for everybody (mode %04o); name a directory of your own inside it, not %s"
				    : "%s may be written by others (mode %04o); run: chmod go-w %s",
			    dir, st.st_mode & 07777, dir);
	*dir_fd = fd_take(&fd);
	return IPCC_OK;
}

/* Names the file `fd` (an O_PATH fd), or an entry of that directory, for calls that want a path. */
static struct sockaddr_un address_through(int fd, const char *entry)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d%s%s", fd, *entry ? "/" : "", entry);
	return address;
}

static int connect_failed(const char *dir, struct ipcc_error *err)
{
	switch (errno) {
	case ECONNREFUSED:
		return fail(err, IPCC_NO_BROKER, "no broker listens in %s; it has ended: start ipc-cached --dir %s",
			    dir, dir);
	case EACCES:
	case EPERM:
		return fail(err, IPCC_REFUSED,
			    "the broker in %s does not let you connect; ask its owner to admit you (see ipc-cached(8))",
			    dir);
	case EAGAIN:
		return fail(err, IPCC_TIMEOUT, "the broker in %s takes no connection; it is stopped or overloaded",
			    dir);
	case ENOENT:
		return fail(err, IPCC_FAILED, "cannot connect in %s: /proc is not mounted here", dir);
	default:
		return fail_errno(err, errno, "cannot connect to the broker in %s", dir);
	}
}

int rendezvous_connect(int dir_fd, const char *dir, const uid_t *trusted, unsigned trusted_count, int timeout_ms,
		       int *socket_fd, struct ipcc_error *err)
{
	cleanup_fd int entry = openat(dir_fd, PROTOCOL_SOCKET_NAME, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;
	if (entry < 0 && errno == ENOENT)
		return fail(err, IPCC_NO_BROKER, "no broker has its socket in %s; start ipc-cached --dir %s", dir, dir);
	if (entry < 0 || fstat(entry, &st) != 0)
		return fail(err, IPCC_REFUSED,
			    "cannot open %s/%s: %s; its owner has not opened it for you, and for another broker set "
			    "IPC_CACHE_DIR",
			    dir, PROTOCOL_SOCKET_NAME, strerror(errno));
	if (!S_ISSOCK(st.st_mode))
		return fail(err, IPCC_REFUSED, "%s/%s is %s and no socket; remove it and restart the broker", dir,
			    PROTOCOL_SOCKET_NAME, S_ISLNK(st.st_mode) ? "a symbolic link" : "some other file");

	cleanup_fd int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return fail_errno(err, errno, "cannot create a socket");
	if (timeout_ms >= 0) {
		/* Never zero, which would mean for ever. */
		struct timeval limit = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000 + 1};
		if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0)
			return fail_errno(err, errno, "cannot set the connection's time limit");
	}
	struct sockaddr_un address = address_through(entry, "");
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		return connect_failed(dir, err);

	/* Only the uid: under socket activation the pid is that of whoever created the listening socket. */
	struct ucred peer;
	socklen_t length = sizeof(peer);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
		return fail_errno(err, errno, "cannot read the broker's credentials");
	if (!is_trusted(peer.uid, trusted, trusted_count))
		return fail(err, IPCC_REFUSED,
			    "the broker in %s runs as uid %u, who is neither you nor root nor trusted "
			    "(IPC_CACHE_TRUST_UID)",
			    dir, peer.uid);
	*socket_fd = fd_take(&fd);
	return IPCC_OK;
}

static int remove_stale(int dir_fd, const char *dir, struct ipcc_error *err)
{
	struct stat st;
	if (fstatat(dir_fd, PROTOCOL_SOCKET_NAME, &st, AT_SYMLINK_NOFOLLOW) != 0)
		return errno == ENOENT ? IPCC_OK : fail_errno(err, errno, "%s/%s", dir, PROTOCOL_SOCKET_NAME);
	if (!S_ISSOCK(st.st_mode))
		return fail(err, IPCC_REFUSED, "%s/%s is in the way and no socket; remove it", dir,
			    PROTOCOL_SOCKET_NAME);
	if (unlinkat(dir_fd, PROTOCOL_SOCKET_NAME, 0) != 0)
		return fail_errno(err, errno, "cannot remove the stale %s/%s", dir, PROTOCOL_SOCKET_NAME);
	return IPCC_OK;
}

int rendezvous_listen(int dir_fd, const char *dir, mode_t mode, int *socket_fd, struct ipcc_error *err)
{
	int rc = remove_stale(dir_fd, dir, err);
	if (rc != IPCC_OK)
		return rc;
	cleanup_fd int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return fail_errno(err, errno, "cannot create a socket");
	struct sockaddr_un address = address_through(dir_fd, PROTOCOL_SOCKET_NAME);
	/* Born closed to everybody else; widened only once it has its final mode. */
	mode_t before = umask(0177);
	int bound = bind(fd, (struct sockaddr *)&address, sizeof(address));
	int bind_errno = errno;
	umask(before);
	if (bound != 0)
		return fail_errno(err, bind_errno, "cannot create %s/%s", dir, PROTOCOL_SOCKET_NAME);
	if (fchmodat(dir_fd, PROTOCOL_SOCKET_NAME, mode, 0) != 0)
		return fail_errno(err, errno, "cannot set the mode of %s/%s", dir, PROTOCOL_SOCKET_NAME);
	if (listen(fd, SOMAXCONN) != 0)
		return fail_errno(err, errno, "cannot listen on %s/%s", dir, PROTOCOL_SOCKET_NAME);
	*socket_fd = fd_take(&fd);
	return IPCC_OK;
}
