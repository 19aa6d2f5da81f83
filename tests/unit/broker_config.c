/* The configuration file: what it sets, and that no mistake in it passes unseen. */
#include "broker/config.h"
#include "tests/unit/leaks.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(config, .init = leaks_before, .fini = leaks_after);

static int read_text(struct config *config, const char *text, struct ipcc_error *err)
{
	char path[] = "/tmp/ipc-cache-config-XXXXXX";
	int fd = mkstemp(path);
	cr_assert_geq(fd, 0);
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	int rc = config_read(config, path, err);
	unlink(path);
	return rc;
}

Test(config, defaults_suit_a_single_user)
{
	struct config config;
	config_defaults(&config);
	cr_assert_eq(config.open, OPEN_OWNER);
	cr_assert_not(config.attach.all);
	cr_assert_eq(config.attach.uid_count + config.publish.uid_count + config.trusted.uid_count, 0);
	cr_assert_eq(config.limits.bytes, 0);
}

Test(config, every_entry_is_read)
{
	struct config config;
	struct ipcc_error err = {0};
	int rc = read_text(&config,
			   "; a comment\n"
			   "[broker]\ndir = /run/weights\nopen = @0\n"
			   "[access]\nattach = 1000, root @5 \npublish = all\nevict = 7\ntrusted = 1000 1001\n"
			   "[limits]\nconnections = 10\nmodels = 3\nsegments = 40\nbytes = 64G\n"
			   "[limits 1000]\nmodels = 9\nbytes = unlimited\n"
			   "[timeouts]\nhello_ms = 100\nidle_ms = 2000\nwrite_ms = 300\n",
			   &err);
	cr_assert_eq(rc, IPCC_OK, "%s", err.message);
	cr_assert_str_eq(config.dir, "/run/weights");
	cr_assert_eq(config.open, OPEN_GROUP);
	cr_assert_eq(config.open_gid, 0);
	cr_assert_eq(config.attach.uid_count, 2);
	cr_assert_eq(config.attach.uids[1], 0, "root is found by name");
	cr_assert_eq(config.attach.gids[0], 5);
	cr_assert(config.publish.all);
	cr_assert_eq(config.trusted.uids[1], 1001);
	cr_assert_eq(config.limits.bytes, UINT64_C(64) << 30);
	cr_assert_eq(config_limits(&config, 1000)->models, 9);
	cr_assert_eq(config_limits(&config, 1000)->connections, 10, "the rest is the general limit");
	cr_assert_eq(config_limits(&config, 1000)->bytes, 0);
	cr_assert_eq(config_limits(&config, 1001)->models, 3);
	cr_assert_eq(config.hello_ms, 100);
}

struct mistake {
	const char *text;
	const char *said; /* part of the message; the line is the last of the text */
};

static const struct mistake mistakes[] = {
	{"[access]\natach = all\n", ":2: [access] atach = all is not known"},
	{"[acess]\nattach = all\n", "stands in a section that is not known"},
	{"attach = all\n", "stands in a section that is not known"},
	{"[limits]\nmodels = 1\nmodels = 2\n", ":3: [limits] models = 2 is given twice"},
	{"[access]\nattach = no-such-user-here\n", "names a user that does not exist"},
	{"[access]\nattach = @no-such-group-here\n", "names a group that does not exist"},
	{"[access]\nattach = 4294967295\n", "names a user that does not exist"},
	{"[access]\ntrusted = all\n", "must list users one by one"},
	{"[access]\ntrusted = @0\n", "must list users one by one"},
	{"[broker]\ndir = relative\n", "must be an absolute path"},
	{"[broker]\nopen = everyone\n", "must be owner, all, or @"},
	{"[limits]\nmodels = -1\n", "must be a number"},
	{"[limits]\nmodels = 1x\n", "must be a number"},
	{"[limits]\nmodels = 99999999999999999999\n", "must be a number"},
	{"[limits]\nbytes = 1E\n", "must be a number with K, M, G or T"},
	{"[limits]\nbytes = 99999999999T\n", "must be a number with K, M, G or T"},
	{"[limits no-such-user-here]\nmodels = 1\n", "stands under a user that does not exist"},
	{"[timeouts]\nhello_ms = 1\n", "must be 10 to 86400000"},
	{"[broker\n", ":1: neither a [section] nor a name = value"},
	{"[broker]\nnonsense\n", ":2: neither a [section] nor a name = value"},
};

Test(config, every_mistake_is_named_with_its_line)
{
	for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
		struct config config = {.hello_ms = 4711};
		struct ipcc_error err = {0};
		int rc = read_text(&config, mistakes[i].text, &err);
		cr_assert_eq(rc, IPCC_INVALID, "%s: code %d, %s", mistakes[i].text, rc, err.message);
		cr_assert_not_null(strstr(err.message, mistakes[i].said), "%s: %s", mistakes[i].text, err.message);
		cr_assert_eq(config.hello_ms, 4711, "the output is untouched on failure");
	}
}

Test(config, long_lists_may_be_given_in_parts)
{
	struct config config;
	struct ipcc_error err = {0};
	char text[2048] = "[access]\n";
	for (int i = 0; i < 60; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), i % 10 == 0 ? "attach = %d\n" : "  %d\n",
			 1000 + i);
	cr_assert_eq(read_text(&config, text, &err), IPCC_OK, "%s", err.message);
	cr_assert_eq(config.attach.uid_count, 60);
	cr_assert_eq(config.attach.uids[59], 1059);
}

Test(config, a_missing_file_is_named)
{
	struct config config;
	struct ipcc_error err = {0};
	cr_assert_eq(config_read(&config, "/no/such/file.ini", &err), IPCC_FAILED);
	cr_assert_not_null(strstr(err.message, "/no/such/file.ini"));
	cr_assert_not_null(strstr(err.message, "No such file"));
}
