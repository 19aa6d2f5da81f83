/* Charges: every limit is found before anything is held, and what is given back is free again. */
#include "broker/account.h"
#include "tests/unit/leaks.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(account, .init = leaks_before, .fini = leaks_after);

static struct config config;
static struct accounts accounts;

static void set_up(void)
{
	config_defaults(&config);
	config.limits = (struct limits){.connections = 2, .models = 2, .segments = 5, .bytes = 1000};
	accounts_init(&accounts, &config, 1024);
}

static int charge(uint32_t segments, uint64_t bytes, struct account **account, const char *said)
{
	struct ipcc_error err = {0};
	int rc = account_charge_model(&accounts, 1000, segments, bytes, account, &err);
	if (said != NULL)
		cr_assert_not_null(strstr(err.message, said), "%s", err.message);
	return rc;
}

Test(account, connections_are_limited_per_uid_and_counted_back)
{
	struct account *a, *b, *c;
	set_up();
	cr_assert_eq(account_charge_connection(&accounts, 1000, false, &a, NULL), IPCC_OK);
	cr_assert_eq(account_charge_connection(&accounts, 1000, false, &b, NULL), IPCC_OK);
	cr_assert_eq(a, b);
	cr_assert_eq(account_charge_connection(&accounts, 1000, false, &c, NULL), IPCC_REFUSED);
	cr_assert_eq(account_charge_connection(&accounts, 1001, false, &c, NULL), IPCC_OK,
		     "another uid has its own limit");
	account_release_connection(&accounts, a);
	cr_assert_eq(account_charge_connection(&accounts, 1000, false, &a, NULL), IPCC_OK);
	cr_assert_eq(accounts.connections, 3);
	account_release_connection(&accounts, a);
	account_release_connection(&accounts, b);
	account_release_connection(&accounts, c);
	cr_assert(LIST_EMPTY(&accounts.all), "an account without charges does not stay");
}

Test(account, models_segments_and_bytes_are_limited_and_named)
{
	struct account *a, *b, *none;
	set_up();
	cr_assert_eq(charge(6, 1, &none, "limit of 5"), IPCC_REFUSED);
	cr_assert_eq(charge(1, 1001, &none, "limit of 1000"), IPCC_REFUSED);
	cr_assert_eq(charge(3, 600, &a, NULL), IPCC_OK);
	cr_assert_eq(charge(3, 1, &none, "raise segments"), IPCC_REFUSED);
	cr_assert_eq(charge(1, 401, &none, "raise bytes"), IPCC_REFUSED);
	cr_assert_eq(charge(1, UINT64_MAX, &none, "64 bits"), IPCC_INVALID);
	cr_assert_eq(charge(2, 400, &b, NULL), IPCC_OK);
	cr_assert_eq(charge(0, 0, &none, "holds 2 models"), IPCC_REFUSED);
	account_release_model(&accounts, a, 3, 600);
	account_release_model(&accounts, b, 2, 400);
	cr_assert_eq(accounts.bytes + accounts.segments + accounts.models, 0);
	cr_assert(LIST_EMPTY(&accounts.all));
}

Test(account, a_refused_first_charge_leaves_no_account)
{
	struct account *none;
	set_up();
	cr_assert_eq(charge(6, 1, &none, NULL), IPCC_REFUSED);
	cr_assert(LIST_EMPTY(&accounts.all));
}

Test(account, no_uid_may_take_the_fds_that_receiving_needs)
{
	struct account *a;
	struct ipcc_error err = {0};
	set_up();
	config.limits = (struct limits){.connections = 5000, .models = 5000, .segments = 5000};
	unsigned taken = 0;
	while (account_charge_model(&accounts, 1000, 9, 1, &a, &err) == IPCC_OK)
		taken++;
	cr_assert_not_null(strstr(err.message, "out of file descriptors"), "%s", err.message);
	cr_assert_lt(taken * 10, 1024 - 253);
	while (taken-- > 0)
		account_release_model(&accounts, a, 9, 1);
}
