/*
 * The daemon's configuration: one INI file (ipc-cached(8)), and defaults that suit a single user with none.
 *
 * Immutable once read. Unknown sections, unknown keys, duplicate keys and values that make no sense are errors with file
 * and line: a typing error in an access rule must not widen it.
 */
#ifndef IPCC_BROKER_CONFIG_H
#define IPCC_BROKER_CONFIG_H

#include "manifest/error.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Who: a list of users and groups, or everybody. The broker's own uid and root never need to be listed. */
#define CONFIG_MAX_PRINCIPALS 64
struct principals {
	bool all;
	uint32_t uid_count, gid_count;
	uid_t uids[CONFIG_MAX_PRINCIPALS];
	gid_t gids[CONFIG_MAX_PRINCIPALS];
};

/* What one uid may hold at a time. 0 for bytes and manifest_bytes: no limit. */
struct limits {
	uint32_t connections;
	uint32_t models; /* resident and loading */
	uint32_t segments;
	uint64_t bytes;
	uint64_t manifest_bytes; /* in the broker's memory */
};

#define CONFIG_MAX_USER_LIMITS 64
struct user_limits {
	uid_t uid;
	struct limits limits;
};

struct config {
	char dir[PATH_MAX]; /* "": rendezvous_broker_dir */
	/* Directory and socket modes: 0700 and 0600; 0750 and 0660 with open_gid; 0711 and 0666. */
	enum { OPEN_OWNER, OPEN_GROUP, OPEN_ALL } open;
	gid_t open_gid;

	struct principals attach;     /* may connect, and attach what others made visible to them */
	struct principals attach_gpu; /* may, beyond that, attach models of others that are on a GPU */
	struct principals publish;    /* may publish; implies connecting */
	struct principals evict;      /* may evict models of others */
	struct principals trusted;    /* whose models others may attach, besides root's */

	struct limits limits;
	uint32_t user_limit_count;
	struct user_limits user_limits[CONFIG_MAX_USER_LIMITS];

	uint32_t hello_ms; /* a connection that has not said HELLO by then is closed */
	uint32_t idle_ms;  /* so is one without a lease, a claim or a request */
	uint32_t write_ms; /* so is one that does not read its reply */
};

void config_defaults(struct config *config);
/* Reads `path` over the defaults. IPCC_INVALID names file and line. */
int config_read(struct config *config, const char *path, struct ipcc_error *err);

const struct limits *config_limits(const struct config *config, uid_t uid);

#endif
