/*
 * Proof that the net of leaks.h holds: leaks are seen, and a run with a leaking test fails.
 *
 * The tests of suite leaks_on_demand leak when IPCC_TEST_LEAK says so, and only then. Others run this program on that
 * suite again, with the variable set, and expect it to fail.
 */
#include "tests/unit/leaks.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(leaks_net, .init = leaks_before, .fini = leaks_after);
TestSuite(leaks_on_demand, .init = leaks_before, .fini = leaks_after);

static bool asked_for(const char *kind)
{
	const char *asked = getenv("IPCC_TEST_LEAK");
	return asked != NULL && strcmp(asked, kind) == 0;
}

/* Not inlined, so that no register or stack slot of the caller keeps the address. */
static __attribute__((noinline)) void lose_memory(void)
{
	char *volatile lost = malloc(100);
	cr_assert_not_null(lost);
	lost = NULL;
}

Test(leaks_on_demand, memory)
{
	if (asked_for("memory"))
		lose_memory();
}

Test(leaks_on_demand, fd)
{
	if (asked_for("fd"))
		cr_assert_geq(open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
}

static void crash_if_asked(void)
{
	if (asked_for("crash"))
		abort();
	leaks_after();
}

Test(leaks_on_demand, crash_in_teardown, .fini = crash_if_asked)
{
}

/* The exit status of this program, run on suite leaks_on_demand. */
static int run_again(const char *kind)
{
	/* Criterion's own variables would make the program a worker of this run. */
	char command[512];
	snprintf(command, sizeof(command),
		 "unset $(env | sed -n 's/^\\(BXF[A-Z_]*\\|CRITERION[A-Z_]*\\)=.*/\\1/p') IPCC_TEST_LEAK; "
		 "IPCC_TEST_LEAK=%s exec /proc/%d/exe --filter 'leaks_on_demand/*' >/dev/null 2>&1",
		 kind, getpid());
	int status = system(command);
	cr_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}

Test(leaks_net, a_run_without_leaks_passes, .timeout = 60)
{
	cr_assert_eq(run_again("none"), 0);
}

Test(leaks_net, a_run_with_a_leaked_fd_fails, .timeout = 60)
{
	cr_assert_eq(run_again("fd"), 1);
}

Test(leaks_net, a_run_with_leaked_memory_fails, .timeout = 60)
{
	if (!leaks_memory_checked())
		cr_skip_test("this build has no AddressSanitizer, which sees leaked memory");
	cr_assert_eq(run_again("memory"), 1);
}

Test(leaks_net, a_run_with_a_crash_in_teardown_fails, .timeout = 60)
{
	cr_assert_eq(run_again("crash"), 1);
}

Test(leaks_net, an_fd_that_was_replaced_is_seen)
{
	char text[256];
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	leaks_before();
	cr_assert_eq(leaks_find(text, sizeof(text)), 0);
	close(fd);
	cr_assert_eq(open("/dev/zero", O_RDONLY | O_CLOEXEC), fd);
	cr_assert_eq(leaks_find(text, sizeof(text)), 1);
	cr_assert_not_null(strstr(text, "/dev/zero"), "%s", text);
	close(fd);
}
