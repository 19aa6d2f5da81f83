/* SO_PEERCRED and SO_PEERGROUPS; see peer.h. */
#include "broker/peer.h"

#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

/* What the kernel shows for a uid that has no mapping in our user namespace (/proc/sys/kernel/overflowuid). */
#define OVERFLOW_UID 65534
/* The kernel's NGROUPS_MAX. */
#define MAX_GROUPS 65536

int peer_read(int socket, struct peer *peer, struct ipcc_error *err)
{
	struct ucred credentials;
	socklen_t length = sizeof(credentials);
	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
		return fail_errno(err, errno, "cannot read the peer's credentials");
	/* A real process of uid 65534 has a pid; a process of a user namespace that maps nobody here has neither. */
	if (credentials.uid == OVERFLOW_UID && credentials.pid == 0)
		return fail(err, IPCC_REFUSED,
			    "your user namespace gives you no identity here (uid 65534, pid 0); map your uid into it");
	*peer = (struct peer){.uid = credentials.uid, .gid = credentials.gid, .pid = credentials.pid};
	return IPCC_OK;
}

bool peer_in_group(int socket, const struct peer *peer, gid_t gid)
{
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
