/* Charges per uid and for the whole broker; see account.h. */
#include "broker/account.h"

#include "broker/protocol.h"
#include "broker/reaper.h"
#include "manifest/fail.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

/* For the broker's user and root, so that they can always look and evict. */
#define ADMIN_FDS 64

/* fds that are no connection and no model: standard streams, epoll, signals, directory, lock, socket, journal, a draft's
 * copy, the spare one; and a whole message's worth, so that receiving never fails for want of room. */
#define RESERVED_FDS (32 + PROTOCOL_MAX_FDS)

void accounts_init(struct accounts *accounts, const struct config *config, uint32_t fd_limit)
{
	*accounts = (struct accounts){.config = config, .fd_limit = fd_limit};
	LIST_INIT(&accounts->all);
}

void accounts_fini(struct accounts *accounts)
{
	while (!LIST_EMPTY(&accounts->all)) {
		struct account *account = LIST_FIRST(&accounts->all);
		LIST_REMOVE(account, link);
		free(account);
	}
}

static struct account *account_find(struct accounts *accounts, uid_t uid)
{
	struct account *account;
	LIST_FOREACH(account, &accounts->all, link)
	if (account->uid == uid)
		return account;
	account = calloc(1, sizeof(*account));
	if (account != NULL) {
		account->uid = uid;
		LIST_INSERT_HEAD(&accounts->all, account, link);
	}
	return account;
}

static void account_drop_if_empty(struct account *account)
{
	if (account->connections == 0 && account->models == 0 && account->bytes == 0) {
		LIST_REMOVE(account, link);
		free(account);
	}
}

static bool fds_left(const struct accounts *accounts, uint64_t more)
{
	return accounts->connections + (uint64_t)accounts_model_fds(accounts) + reaper_foreign_left() + more +
		       RESERVED_FDS <=
	       accounts->fd_limit;
}

static int out_of_fds(const struct accounts *accounts, struct ipcc_error *err)
{
	return fail(err, IPCC_REFUSED,
		    "the broker is out of file descriptors: %u connections and %u model fds of %u; evict models or "
		    "raise its LimitNOFILE",
		    accounts->connections, accounts_model_fds(accounts), accounts->fd_limit);
}

int account_charge_connection(struct accounts *accounts, uid_t uid, bool admin, struct account **account,
			      struct ipcc_error *err)
{
	uint32_t limit = config_limits(accounts->config, uid)->connections;
	if (!fds_left(accounts, admin ? 1 : 1 + ADMIN_FDS))
		return out_of_fds(accounts, err);
	struct account *found = account_find(accounts, uid);
	if (found == NULL)
		return fail_errno(err, ENOMEM, "the broker cannot take the connection");
	/* A closed one counts until its socket is really gone, which what it was sent may delay. */
	if (found->connections + reaper_foreign_left_of(uid) >= limit) {
		account_drop_if_empty(found);
		return fail(err, IPCC_REFUSED,
			    "uid %u has %u connections open, its limit; close some, or raise connections in [limits]",
			    uid, limit);
	}
	found->connections++;
	accounts->connections++;
	*account = found;
	return IPCC_OK;
}

void account_release_connection(struct accounts *accounts, struct account *account)
{
	account->connections--;
	accounts->connections--;
	account_drop_if_empty(account);
}

static int check_model(const struct accounts *accounts, const struct account *account, uint32_t segments,
		       uint64_t bytes, struct ipcc_error *err)
{
	const struct limits *limits = config_limits(accounts->config, account->uid);
	uint64_t sum;
	if (!fds_left(accounts, segments + 1ULL))
		return out_of_fds(accounts, err);
	if (account->models >= limits->models)
		return fail(err, IPCC_REFUSED,
			    "uid %u holds %u models, its limit; evict some, or raise models in [limits]", account->uid,
			    account->models);
	if (segments > limits->segments || account->segments > limits->segments - segments)
		return fail(err, IPCC_REFUSED,
			    "uid %u holds %u segments, and %u more pass its limit of %u; evict models, or raise "
			    "segments in [limits]",
			    account->uid, account->segments, segments, limits->segments);
	if (add_overflows(account->bytes, bytes, &sum) || add_overflows(accounts->bytes, bytes, &sum))
		return fail(err, IPCC_INVALID, "segment sizes that sum to more than 64 bits hold");
	if (limits->bytes != 0 && account->bytes + bytes > limits->bytes)
		return fail(err, IPCC_REFUSED,
			    "uid %u holds %" PRIu64 " bytes, and %" PRIu64 " more pass its limit of %" PRIu64
			    "; evict models, or raise bytes in [limits]",
			    account->uid, account->bytes, bytes, limits->bytes);
	return IPCC_OK;
}

int account_charge_model(struct accounts *accounts, uid_t uid, uint32_t segments, uint64_t bytes,
			 struct account **account, struct ipcc_error *err)
{
	struct account *found = account_find(accounts, uid);
	if (found == NULL)
		return fail_errno(err, ENOMEM, "the broker cannot take the model");
	int rc = check_model(accounts, found, segments, bytes, err);
	if (rc != IPCC_OK) {
		account_drop_if_empty(found);
		return rc;
	}
	found->models++;
	found->segments += segments;
	found->bytes += bytes;
	accounts->models++;
	accounts->segments += segments;
	accounts->bytes += bytes;
	*account = found;
	return IPCC_OK;
}

void account_release_fds(struct accounts *accounts, struct account *account, uint32_t segments)
{
	account->models--;
	account->segments -= segments;
	accounts->models--;
	accounts->segments -= segments;
}

void account_release_bytes(struct accounts *accounts, struct account *account, uint64_t bytes)
{
	account->bytes -= bytes;
	accounts->bytes -= bytes;
	account_drop_if_empty(account);
}

void account_release_model(struct accounts *accounts, struct account *account, uint32_t segments, uint64_t bytes)
{
	account_release_fds(accounts, account, segments);
	account_release_bytes(accounts, account, bytes);
}

int account_charge_manifest(const struct accounts *accounts, struct account *account, uint64_t bytes,
			    struct ipcc_error *err)
{
	uint64_t limit = config_limits(accounts->config, account->uid)->manifest_bytes;
	if (limit != 0 && (bytes > limit || account->manifest_bytes > limit - bytes))
		return fail(err, IPCC_REFUSED,
			    "uid %u holds %" PRIu64 " bytes of manifests, and %" PRIu64
			    " more pass its limit of %" PRIu64 "; evict models, or raise manifest_bytes in [limits]",
			    account->uid, account->manifest_bytes, bytes, limit);
	account->manifest_bytes += bytes;
	return IPCC_OK;
}

void account_release_manifest(struct account *account, uint64_t bytes)
{
	account->manifest_bytes -= bytes;
}
