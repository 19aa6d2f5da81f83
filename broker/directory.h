/* The broker's directory: made, checked, locked against a second broker, and the socket in it. */
#ifndef IPCC_BROKER_DIRECTORY_H
#define IPCC_BROKER_DIRECTORY_H

#include "broker/config.h"
#include "manifest/error.h"

struct directory {
	int fd;
	int lock_fd;   /* flock'ed as long as the broker lives */
	int listen_fd; /* given away to the server */
};

/* Makes config->dir with the mode that `open` asks for if it does not exist, checks that it is ours, locks it and
 * listens. IPCC_BUSY names the broker that has it. */
int directory_init(struct directory *directory, const struct config *config, struct ipcc_error *err);
/* Removes the socket; the directory stays. */
void directory_fini(struct directory *directory);

#endif
