/* SO_PEERCRED and SO_PEERGROUPS; see peer.h. */
#include "broker/peer.h"

#include "broker/link/identity.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

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

bool peer_in_group(int socket, const struct peer *peer, gid_t gid)
{
	if (gid == IDENTITY_OVERFLOW && !peer->overflow_is_real)
		return false;
	if (peer->gid == gid)
		return true;
	gid_t few[64];
	cleanup_free gid_t *many = NULL;
	gid_t *groups = few;
	socklen_t bytes = sizeof(few);
	if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes) != 0) {
		if (errno != ERANGE || bytes > MAX_GROUPS * sizeof(gid_t))
			return false;
		groups = many = malloc(bytes);
		if (groups == NULL || getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes) != 0)
			return false;
	}
	for (size_t i = 0; i < bytes / sizeof(gid_t); i++)
		if (groups[i] == gid)
			return true;
	return false;
}
