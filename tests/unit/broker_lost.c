/* Which lost models are remembered, for whom, and until when. */
#include "broker/lost.h"
#include "broker/model.h"
#include "manifest/bytes.h"
#include "tests/unit/leaks.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(broker_lost, .init = leaks_before, .fini = leaks_after);

/* A model of that uid whose key is its name. */
static struct model *model_of(struct account *account, const char *name)
{
	struct ipcc_field field = {"model", name};
	struct key key;
	uint64_t bytes = 4096;
	cr_assert_eq(key_init(&key, &field, 1, NULL), 0);
	struct model *model = model_new(&key, name, strlen(name), &bytes, 1, true);
	cr_assert_not_null(model);
	model->account = account;
	model->publisher_pid = 4711;
	return model;
}

static void lose(struct lost *lost, struct account *account, const char *name)
{
	struct model *model = model_of(account, name);
	lost_note(lost, model);
	model_free(model);
}

static const struct lost_model *find(const struct lost *lost, uid_t owner, const char *text)
{
	struct selection want = {0};
	snprintf(want.text, sizeof(want.text), "%s", text);
	return lost_find(lost, owner, &want);
}

Test(broker_lost, a_lost_model_is_found_by_name_id_and_field_by_its_owner_alone)
{
	struct lost lost = {0};
	struct account account = {.uid = 7};
	struct selection want = {0};
	struct ipcc_field field = {"model", "one"};
	char id[HASH_TEXT_BYTES];

	lose(&lost, &account, "one");
	const struct lost_model *found = find(&lost, 7, "one");
	cr_assert_not_null(found);
	cr_assert_eq(found->keeper, 4711);
	hash_text(&found->key.id, id);
	id[8] = '\0';
	cr_assert_eq(find(&lost, 7, id), found);
	cr_assert_null(find(&lost, 8, "one"));
	cr_assert_null(find(&lost, 7, "two"));
	cr_assert_eq(key_init(&want.key, &field, 1, NULL), 0);
	cr_assert_eq(lost_find(&lost, 7, &want), found);
	want.exact = true;
	cr_assert_eq(lost_find(&lost, 7, &want), found);
	selection_fini(&want);
	lost_fini(&lost);
}

Test(broker_lost, what_is_there_again_is_forgotten_and_only_that)
{
	struct lost lost = {0};
	struct account mine = {.uid = 7}, other = {.uid = 8};

	lose(&lost, &mine, "one");
	lose(&lost, &mine, "two");
	lose(&lost, &other, "one");
	struct model *again = model_of(&mine, "one");
	lost_forget(&lost, again);
	model_free(again);
	cr_assert_null(find(&lost, 7, "one"));
	cr_assert_not_null(find(&lost, 7, "two"));
	cr_assert_not_null(find(&lost, 8, "one"));
	lost_fini(&lost);
}

Test(broker_lost, only_the_last_are_remembered_and_each_once)
{
	struct lost lost = {0};
	struct account account = {.uid = 7};
	char name[16];

	for (int i = 0; i < LOST_MAX + 3; i++) {
		snprintf(name, sizeof(name), "m%d", i);
		lose(&lost, &account, name);
	}
	cr_assert_null(find(&lost, 7, "m2"));
	cr_assert_not_null(find(&lost, 7, "m3"));
	for (int i = 0; i < 3 * LOST_MAX; i++)
		lose(&lost, &account, "again");
	/* A keeper that ends again and again takes one place. */
	cr_assert_null(find(&lost, 7, "m3"));
	cr_assert_not_null(find(&lost, 7, "m4"));
	cr_assert_not_null(find(&lost, 7, "again"));
	lost_fini(&lost);
}
