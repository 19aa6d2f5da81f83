/* SO_PEERCRED and SO_PEERGROUPS; see peer.h. */
#include "broker/peer.h"

#include "broker/link/identity.h"
#include "manifest/fail.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

/* The kernel's NGROUPS_MAX. */
#define MAX_GROUPS 65536

int peer_read(int socket, bool overflow_is_real, struct peer *peer, struct ipcc_error *err)
{
	struct ucred credentials;
	socklen_t length = sizeof(credentials);
	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
		return fail_errno(err, errno, "cannot read the peer's credentials");
	*peer = (struct peer){.uid = credentials.uid,
			      .gid = credentials.gid,
			      .pid = credentials.pid,
			      .overflow_is_real = overflow_is_real};
	/* Even where 65534 is a real user: its processes have a pid, those of an unmapped namespace have none. */
	if (credentials.uid == IDENTITY_OVERFLOW && (!overflow_is_real || credentials.pid == 0))
		return fail(err, IPCC_REFUSED,
			    "no user namespace gives you an identity here (uid 65534, pid %d); map your uid into the "
			    "broker's",
			    credentials.pid);
	return IPCC_OK;
}

/* The groups of the connection that was asked about last. The loop is one thread. */
static struct {
	uint64_t connection; /* 0: none */
	size_t count;
	gid_t *groups;
	size_t room;
} known;

static bool make_room(size_t count)
{
	gid_t *more = count > MAX_GROUPS ? NULL : realloc(known.groups, count * sizeof(*more));
	if (more == NULL)
		return false;
	known.groups = more;
	known.room = count;
	return true;
}

static bool read_groups(int socket)
{
	known.connection = 0;
	if (known.room == 0 && !make_room(64))
		return false;
	socklen_t bytes = (socklen_t)(known.room * sizeof(gid_t));
	int failed = getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, known.groups, &bytes);
	if (failed && errno == ERANGE && make_room(bytes / sizeof(gid_t)))
		failed = getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, known.groups, &bytes);
	known.count = bytes / sizeof(gid_t);
	return !failed;
}

bool peer_in_group(int socket, const struct peer *peer, gid_t gid)
{
	if (gid == IDENTITY_OVERFLOW && !peer->overflow_is_real)
		return false;
	if (peer->gid == gid)
		return true;
	if (known.connection == 0 || known.connection != peer->connection) {
		if (!read_groups(socket))
			return false;
		known.connection = peer->connection;
	}
	for (size_t i = 0; i < known.count; i++)
		if (known.groups[i] == gid)
			return true;
	return false;
}
