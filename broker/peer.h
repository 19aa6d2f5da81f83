/* Who is at the other end of a connection, as the kernel says it: never what a message claims. */
#ifndef IPCC_BROKER_PEER_H
#define IPCC_BROKER_PEER_H

#include "manifest/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct peer {
	uid_t uid;
	gid_t gid;
	pid_t pid;	       /* only ever shown: 0 when the peer lives in a pid namespace that we cannot see into */
	uint64_t connection;   /* which one, never used again; 0: unknown */
	bool overflow_is_real; /* 65534 names one user and one group here, see identity.h */
};

/* Reads SO_PEERCRED. IPCC_REFUSED for a peer without an identity here (unmapped user namespace); *peer is filled even
 * then, to be shown. */
int peer_read(int socket, bool overflow_is_real, struct peer *peer, struct ipcc_error *err);

/* Is `gid` the peer's group or one of its supplementary ones (SO_PEERGROUPS)? False when it cannot be told. The kernel is
 * asked once for all questions about one connection that follow each other: a connection's groups never change. */
bool peer_in_group(int socket, const struct peer *peer, gid_t gid);

#endif
