/*
 * What each uid holds, charged before anything is allocated for it and given back when it goes.
 *
 * Invariant: an account exists as long as anything is charged to it; the sums over all accounts are the totals.
 */
#ifndef IPCC_BROKER_ACCOUNT_H
#define IPCC_BROKER_ACCOUNT_H

#include "broker/config.h"
#include "manifest/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct account {
	LIST_ENTRY(account) link;
	uid_t uid;
	uint32_t connections;
	uint32_t models;
	uint32_t segments;
	uint64_t bytes;		 /* of segments; dropped ones too, while somebody maps them */
	uint64_t manifest_bytes; /* in the broker's own memory */
};

struct accounts {
	LIST_HEAD(, account) all;
	const struct config *config;
	uint32_t fd_limit; /* RLIMIT_NOFILE */
	/* Totals. */
	uint32_t connections;
	uint32_t models;
	uint32_t segments;
	uint64_t bytes;
};

void accounts_init(struct accounts *accounts, const struct config *config, uint32_t fd_limit);
void accounts_fini(struct accounts *accounts);

/* fds that models hold, or have been promised: a manifest and the segments of each. */
static inline uint32_t accounts_model_fds(const struct accounts *accounts)
{
	return accounts->models + accounts->segments;
}

/* Charge `uid`; the account is stored. IPCC_REFUSED names the limit and whose it is. */
/* `admin`: the last fds are for those who can put things right. */
int account_charge_connection(struct accounts *accounts, uid_t uid, bool admin, struct account **account,
			      struct ipcc_error *err);
void account_release_connection(struct accounts *accounts, struct account *account);
int account_charge_model(struct accounts *accounts, uid_t uid, uint32_t segments, uint64_t bytes,
			 struct account **account, struct ipcc_error *err);
/* A model that is dropped while it is leased gives back its fds first, and its bytes at the end. */
void account_release_model(struct accounts *accounts, struct account *account, uint32_t segments, uint64_t bytes);
void account_release_fds(struct accounts *accounts, struct account *account, uint32_t segments);
void account_release_bytes(struct accounts *accounts, struct account *account, uint64_t bytes);
/* For a uid that has a model charged. */
int account_charge_manifest(const struct accounts *accounts, struct account *account, uint64_t bytes,
			    struct ipcc_error *err);
void account_release_manifest(struct account *account, uint64_t bytes);

#endif
