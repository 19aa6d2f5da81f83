/*
 * What the project relies on of a CUDA driver, each as one check. Passes on the fake driver and on real cards: that is how
 * the fake is known to be true. Prints a line for each check; exit status 0 when all hold.
 *
 * Other processes are this program again, started with the fd numbers that they need: a driver does not survive a fork.
 */
#include "tests/gpu/conformance.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

void check(const char *what, int holds, const char *detail)
{
	printf("%-4s  %s%s%s\n", holds ? "ok" : "FAIL", what, detail[0] ? ": " : "", detail);
	fflush(stdout);
	failures += !holds;
}

/* Not relied on, but good to know. */
void note(const char *what, cu_result result)
{
	printf("note  %s: %s\n", what, raw_error(result));
}

cu_allocation allocation(void)
{
	return (cu_allocation){
		.type = CU_ALLOCATION_PINNED, .handle_types = CU_HANDLE_POSIX_FD, .location = {CU_LOCATION_DEVICE, 0}};
}

cu_memory create(size_t bytes)
{
	cu_allocation a = allocation();
	cu_memory memory = 0;
	raw_must(cu.create(&memory, bytes, &a, 0), "cuMemCreate");
	return memory;
}

int export(cu_memory memory)
{
	int fd = -1;
	raw_must(cu.export_fd(&fd, memory, CU_HANDLE_POSIX_FD, 0), "export");
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	return fd;
}

cu_memory import(int fd)
{
	cu_memory memory = 0;
	raw_must(cu.import_fd(&memory, (void *)(intptr_t)fd, CU_HANDLE_POSIX_FD), "import");
	return memory;
}

cu_result allow(cu_pointer at, size_t bytes, int flags)
{
	cu_access access = {.location = {CU_LOCATION_DEVICE, 0}, .flags = flags};
	return cu.set_access(at, bytes, &access, 1);
}

cu_pointer map(cu_memory memory, size_t bytes, int flags)
{
	cu_pointer at = 0;
	raw_must(cu.reserve(&at, bytes, 0, 0, 0), "reserve");
	raw_must(cu.map(at, bytes, 0, memory, 0), "map");
	raw_must(allow(at, bytes, flags), "access");
	return at;
}

void unmap(cu_pointer at, size_t bytes)
{
	cu.unmap(at, bytes);
	cu.unreserve(at, bytes);
}

unsigned word_at(cu_pointer at)
{
	unsigned word = 0;
	cu_result r = cu.download(&word, at, sizeof(word), NULL);
	if (r == CU_OK)
		r = cu.stream_wait(NULL);
	return r == CU_OK ? word : 0xdeadbeef;
}

void put_word(cu_pointer at, unsigned word)
{
	raw_must(cu.upload(at, &word, sizeof(word), NULL), "upload");
	raw_must(cu.stream_wait(NULL), "upload");
}

pid_t start(const char *role, int fd)
{
	char number[16];
	snprintf(number, sizeof(number), "%d", fd);
	pid_t pid = fork();
	if (pid == 0) {
		fcntl(fd, F_SETFD, 0);
		execl("/proc/self/exe", "conformance", role, number, NULL);
		_exit(126);
	}
	return pid;
}

int ended(pid_t pid)
{
	int status = -1;
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(int fd);
	} roles[] = {{"creator", role_creator}, {"offender", role_offender}, {"writer", role_writer},
		     {"legacy", role_legacy},	{"exporter", role_exporter}, {"hidden", role_hidden},
		     {"blind", role_blind}};
	for (size_t i = 0; argc == 3 && i < sizeof(roles) / sizeof(roles[0]); i++)
		if (strcmp(argv[1], roles[i].name) == 0)
			return roles[i].run(atoi(argv[2]));
	int version = 0;
	char name[64] = "";
	IS("the driver starts", raw_load(), CU_OK);
	cu.version(&version);
	cu.device_name(name, sizeof(name), 0);
	check("and has a version", version >= 11040, name);
	check_memory();
	raw_context(0);
	check_mapping();
	check_read_only();
	check_survival();
	check_accounting();
	check_legacy_handles();
	check_pinning();
	check_context();
	printf("%d failed\n", failures);
	return failures == 0 ? 0 : 1;
}
