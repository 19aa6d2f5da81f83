/*
 * The leak check of leaks.h. Fds are compared by number and by what they point to, so that "closed the wrong one and
 * opened another" shows too. Memory is LeakSanitizer's: it scans stacks, registers and globals for pointers, so a test
 * that keeps a block in a global variable is not reported.
 *
 * Criterion prints an assertion that fails in a suite's .fini but has counted the test as passed by then, and
 * so with a crash there. Hooks in the runner's process take such tests out of the passed ones: the exit status is 1.
 */
#include "tests/unit/leaks.h"

#include <criterion/criterion.h>
#include <criterion/hooks.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Weak: only builds with AddressSanitizer have it. */
extern int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

#define LEAKS_MAX_FDS	   1024
#define LEAKS_TARGET_BYTES 128

static char before[LEAKS_MAX_FDS][LEAKS_TARGET_BYTES];

static void read_target(int fd, char target[LEAKS_TARGET_BYTES])
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ssize_t length = readlink(path, target, LEAKS_TARGET_BYTES - 1);
	target[length < 0 ? 0 : length] = '\0';
}

static void list_fds(char list[LEAKS_MAX_FDS][LEAKS_TARGET_BYTES])
{
	memset(list, 0, sizeof(before));
	DIR *dir = opendir("/proc/self/fd");
	if (dir == NULL)
		return;
	for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
		char *end;
		long fd = strtol(entry->d_name, &end, 10);
		if (*end == '\0' && fd != dirfd(dir) && fd >= 0 && fd < LEAKS_MAX_FDS)
			read_target((int)fd, list[fd]);
	}
	closedir(dir);
}

void leaks_before(void)
{
	list_fds(before);
}

int leaks_memory_checked(void)
{
	return __lsan_do_recoverable_leak_check != NULL;
}

int leaks_find(char *text, size_t bytes)
{
	static char after[LEAKS_MAX_FDS][LEAKS_TARGET_BYTES];

	list_fds(after);
	for (int fd = 0; fd < LEAKS_MAX_FDS; fd++) {
		if (after[fd][0] != '\0' && strcmp(after[fd], before[fd]) != 0) {
			snprintf(text, bytes, "the test leaks fd %d (%s)", fd, after[fd]);
			return 1;
		}
	}
	if (leaks_memory_checked() && __lsan_do_recoverable_leak_check() != 0) {
		snprintf(text, bytes, "the test leaks memory; LeakSanitizer's report is on standard error");
		return 1;
	}
	return 0;
}

void leaks_after(void)
{
	char text[LEAKS_TARGET_BYTES + 64];
	if (leaks_find(text, sizeof(text)))
		cr_assert_fail("%s", text);
}

static size_t passed_bodies;
static size_t clean_ends;

ReportHook(POST_TEST)(struct criterion_test_stats *stats)
{
	if (stats->test_status == CR_STATUS_PASSED)
		passed_bodies++;
}

/* Does not come for a test whose teardown crashed. */
ReportHook(POST_FINI)(struct criterion_test_stats *stats)
{
	if (stats->test_status != CR_STATUS_PASSED)
		return;
	if (stats->failed_asserts == 0)
		clean_ends++;
	else
		cr_log_error("the test above leaks: %s::%s", stats->test->category, stats->test->name);
}

ReportHook(POST_ALL)(struct criterion_global_stats *stats)
{
	stats->tests_failed += passed_bodies - clean_ends;
	stats->tests_passed -= passed_bodies - clean_ends;
}
