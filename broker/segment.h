/*
 * What a segment's fd must be before the broker holds it, by the device that the model's key names.
 *
 *	host	a sealed memfd, complete, of the promised size: nobody can change it
 *	others	a GPU's memory: a character device of NVIDIA's driver or a dma-buf, of which nothing more can be known here;
 *		or, for devices whose memory is host memory, a memfd of the promised size that cannot change
 *
 * Only the host's rule makes the bytes safe from the publisher and other readers. Being allowed to attach to a GPU's model
 * is a grant of trust, see policy.h; and whoever imports a GPU's segment checks which GPU's memory it is.
 */
#ifndef IPCC_BROKER_SEGMENT_H
#define IPCC_BROKER_SEGMENT_H

#include "manifest/error.h"
#include "manifest/key.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct segment_facts {
	bool sized; /* the rest is known: it is a memfd */
	uint64_t bytes;
	dev_t device;
	ino_t inode;
};

/* The key's field `device`, "host" where it has none. */
const char *segment_device(const struct key *key);
bool segment_is_host(const struct key *key);

/* IPCC_INVALID says what the fd is not; `what` names it. Never blocks, whatever the fd is. */
int segment_check(const struct key *key, int fd, const char *what, struct segment_facts *facts, struct ipcc_error *err);

#endif
