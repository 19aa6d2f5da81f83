/*
 * Does a uid name one user? In a user namespace that does not map everybody, the kernel shows all those it does not map as
 * one and the same, the overflow uid: as an identity it is worthless there.
 */
#ifndef IPCC_IDENTITY_H
#define IPCC_IDENTITY_H

#include <stdbool.h>

/* What the kernel shows for a uid or gid without a mapping (the default of /proc/sys/kernel/overflowuid and overflowgid). */
#define IDENTITY_OVERFLOW 65534

/* Are all uids and gids mapped to themselves here, so that even IDENTITY_OVERFLOW is a real one? Reads /proc/self; false
 * when that cannot be read. */
bool identity_maps_everybody(void);

#endif
