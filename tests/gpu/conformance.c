/*
 * What the project relies on of a CUDA driver, each as one check. Passes on the fake driver and on real cards: that is how
 * the fake is known to be true. Prints a line for each check; exit status 0 when all hold.
 *
 * Other processes are this program again, started with the fd numbers that they need: a driver does not survive a fork.
 */
#include "tests/gpu/conformance.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int failures;
static size_t granule;

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

static cu_allocation allocation(void)
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

static int export(cu_memory memory)
{
	int fd = -1;
	raw_must(cu.export_fd(&fd, memory, CU_HANDLE_POSIX_FD, 0), "export");
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	return fd;
}

static cu_memory import(int fd)
{
	cu_memory memory = 0;
	raw_must(cu.import_fd(&memory, (void *)(intptr_t)fd, CU_HANDLE_POSIX_FD), "import");
	return memory;
}

static cu_result allow(cu_pointer at, size_t bytes, int flags)
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

/* ---- other processes ---- */

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

static void send_fd(int socket, int fd)
{
	char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 'x';
	struct iovec part = {&byte, 1};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	*header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	if (sendmsg(socket, &message, 0) != 1)
		exit(1);
}

static int receive_fd(int socket)
{
	char control[CMSG_SPACE(sizeof(int))] = {0}, byte;
	struct iovec part = {&byte, 1};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	int fd = -1;
	if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1)
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

/* Creates, fills, sends the fd, and waits to be killed. */
static int role_creator(int socket)
{
	raw_must(raw_load(), "cuInit");
	raw_context(0);
	cu_memory memory = create(2 * MIB);
	put_word(map(memory, 2 * MIB, CU_ACCESS_READWRITE), 0x600d);
	send_fd(socket, export(memory));
	pause();
	return 0;
}

/* Writes to a read-only mapping; 0 when it was told so and its context is lost. */
static int role_offender(int fd)
{
	raw_must(raw_load(), "cuInit");
	raw_context(0);
	cu_pointer at = map(import(fd), 2 * MIB, CU_ACCESS_READ);
	cu_result stored = raw_store(at, 0xbad), later = cu.context_wait();
	return stored == CU_ILLEGAL_ADDRESS && later == CU_ILLEGAL_ADDRESS ? 0 : 1;
}

/* The same with a read-write mapping: it works. */
static int role_writer(int fd)
{
	raw_must(raw_load(), "cuInit");
	raw_context(0);
	return raw_store(map(import(fd), 2 * MIB, CU_ACCESS_READWRITE), 0x1234) == CU_OK ? 0 : 1;
}

static int role_blind(int fd)
{
	(void)fd;
	return raw_load() == CU_NO_DEVICE ? 0 : 1;
}

/* ---- checks ---- */

static void check_memory(void)
{
	cu_allocation a = allocation();
	cu_memory memory = 0, again;
	IS("a granularity is named without a context", cu.granularity(&granule, &a, CU_GRANULARITY_MINIMUM), CU_OK);
	check("and it is 2 MiB", granule == 2 * MIB, "");
	IS("memory is created without a context", cu.create(&memory, 2 * granule, &a, 0), CU_OK);
	IS("a size between multiples is refused", cu.create(&again, granule + 4096, &a, 0), CU_INVALID_VALUE);
	IS("more than the card has is refused", cu.create(&again, (size_t)1 << 42, &a, 0), CU_OUT_OF_MEMORY);
	int fd = export(memory);
	struct stat st = {0};
	fstat(fd, &st);
	char detail[64];
	snprintf(detail, sizeof(detail), "mode %#o, device %u:%u", st.st_mode, (unsigned)(st.st_rdev >> 8),
		 (unsigned)(st.st_rdev & 0xff));
	check("it is exported as an fd without a context", fd >= 0, detail);
	IS("the handle is released", cu.release(memory), CU_OK);
	memory = import(fd);
	cu_allocation found = {0};
	IS("the fd alone brings it back", cu.properties(&found, memory), CU_OK);
	check("and tells whose it is", found.location.type == CU_LOCATION_DEVICE && found.location.id == 0, "");
	cu.release(memory);
	close(fd);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	IS("another fd is not imported", cu.import_fd(&again, (void *)(intptr_t)null, CU_HANDLE_POSIX_FD), CU_UNKNOWN);
	close(null);
}

static void check_mapping(void)
{
	cu_memory first = create(2 * MIB), second = create(4 * MIB);
	int fd = export(second);
	cu_pointer at = 0;
	raw_must(cu.reserve(&at, 6 * MIB, 0, 0, 0), "reserve");
	IS("mapping from an offset is refused", cu.map(at, 2 * MIB, 2 * MIB, second, 0), CU_NOT_SUPPORTED);
	IS("mapping more than there is is refused", cu.map(at, 6 * MIB, 0, second, 0), CU_NOT_SUPPORTED);
	cu_result less = cu.map(at, 2 * MIB, 0, second, 0);
	note("mapping less than there is", less);
	if (less == CU_OK)
		cu.unmap(at, 2 * MIB);
	IS("memory is mapped", cu.map(at, 2 * MIB, 0, first, 0), CU_OK);
	IS("other memory beside it", cu.map(at + 2 * MIB, 4 * MIB, 0, second, 0), CU_OK);
	IS("nothing where something is", cu.map(at, 2 * MIB, 0, first, 0), CU_INVALID_VALUE);
	IS("one change of access for both", allow(at, 6 * MIB, CU_ACCESS_READWRITE), CU_OK);
	cu.release(first);
	cu.release(second);
	put_word(at + 2 * MIB - 4, 1);
	put_word(at + 2 * MIB, 2);
	unsigned words[2] = {0, 0};
	IS("a copy across both", cu.download(words, at + 2 * MIB - 4, 8, NULL), CU_OK);
	cu.stream_wait(NULL);
	check("reads both, the handles being released", words[0] == 1 && words[1] == 2, "");
	IS("one is unmapped", cu.unmap(at + 2 * MIB, 4 * MIB), CU_OK);
	check("the other stays", word_at(at + 2 * MIB - 4) == 1, "");
	second = import(fd);
	IS("memory is mapped again at the same address", cu.map(at + 2 * MIB, 4 * MIB, 0, second, 0), CU_OK);
	raw_must(allow(at + 2 * MIB, 4 * MIB, CU_ACCESS_READ), "access");
	check("with its bytes", word_at(at + 2 * MIB) == 2, "");
	cu.release(second);
	IS("addresses in use are not given back", cu.unreserve(at, 6 * MIB), CU_INVALID_VALUE);
	IS("all is unmapped", cu.unmap(at, 2 * MIB), CU_OK);
	IS("all is unmapped", cu.unmap(at + 2 * MIB, 4 * MIB), CU_OK);
	IS("and then they are", cu.unreserve(at, 6 * MIB), CU_OK);
	close(fd);
}

static void check_read_only(void)
{
	cu_memory memory = create(2 * MIB);
	int fd = export(memory);
	cu_pointer writable = map(memory, 2 * MIB, CU_ACCESS_READWRITE), at = map(memory, 2 * MIB, CU_ACCESS_READ);
	unsigned word = 7;
	cu.release(memory);
	put_word(writable, 0x600d);
	check("a read-only mapping is read", word_at(at) == 0x600d, "");
	IS("filling it is refused", cu.fill(at, 0, 4, NULL), CU_INVALID_VALUE);
	IS("so is a copy into it", cu.upload(at, &word, 4, NULL), CU_INVALID_VALUE);
	check("the context lives on", cu.context_wait() == CU_OK && word_at(at) == 0x600d, "");
	check("another process's kernel that writes to it is killed by the GPU", ended(start("offender", fd)) == 0, "");
	check("the bytes and this process are as before", word_at(at) == 0x600d && cu.context_wait() == CU_OK, "");
	check("the fd itself is not read-only", ended(start("writer", fd)) == 0 && word_at(at) == 0x1234, "");
	unmap(at, 2 * MIB);
	unmap(writable, 2 * MIB);
	close(fd);
}

static void check_survival(void)
{
	int sockets[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
		exit(1);
	pid_t pid = start("creator", sockets[1]);
	int fd = receive_fd(sockets[0]);
	kill(pid, SIGKILL);
	ended(pid);
	cu_memory memory = import(fd);
	cu_pointer at = map(memory, 2 * MIB, CU_ACCESS_READ);
	check("memory outlives its creator's SIGKILL", word_at(at) == 0x600d, "");
	cu.release(memory);
	unmap(at, 2 * MIB);
	close(fd);
	close(sockets[0]);
	close(sockets[1]);
}

static size_t free_now(void)
{
	size_t free_bytes = 0, total;
	raw_must(cu.memory_info(&free_bytes, &total), "cuMemGetInfo");
	return free_bytes;
}

static void check_accounting(void)
{
	size_t before = free_now(), bytes = 64 * MIB;
	cu_memory memory = create(bytes);
	size_t with = free_now();
	char detail[64];
	snprintf(detail, sizeof(detail), "%zd bytes", (ssize_t)(before - with));
	check("creating takes what was asked for", before - with == bytes, detail);
	int fd = export(memory);
	cu.release(memory);
	check("an fd alone keeps it", before - free_now() == bytes, "");
	close(fd);
	for (int i = 0; i < 100 && free_now() != before; i++)
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	check("closing the last one frees it, to the byte, within a second", free_now() == before, "");
}

/* What windows count on (loader/device/gpu_window.c). */
static void check_pinning(void)
{
	cu_stream streams[2];
	cu_memory memory = create(8 * MIB);
	cu_pointer at = map(memory, 8 * MIB, CU_ACCESS_READWRITE);
	char *host = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned wrong = 0;
	cu.release(memory);
	IS("ordinary memory is pinned", cu.host_pin(host, 4 * MIB + 4096, CU_HOST_PORTABLE), CU_OK);
	IS("so is what follows on it", cu.host_pin(host + 4 * MIB + 4096, 3 * MIB, CU_HOST_PORTABLE), CU_OK);
	IS("but not twice", cu.host_pin(host + 4 * MIB, 8192, CU_HOST_PORTABLE), CU_HOST_PINNED);
	raw_must(cu.stream_create(&streams[0], CU_STREAM_NOT_BLOCKING), "stream");
	raw_must(cu.stream_create(&streams[1], CU_STREAM_NOT_BLOCKING), "stream");
	for (size_t i = 0; i < 7 * MIB; i += 4)
		*(unsigned *)(void *)(host + i) = (unsigned)i * 2654435761u;
	IS("a copy from it begins", cu.upload(at, host, 4 * MIB + 4096, streams[0]), CU_OK);
	IS("beside one on another stream, from the middle of the other piece",
	   cu.upload(at + 4 * MIB + 4096, host + 4 * MIB + 4096, 2 * MIB, streams[1]), CU_OK);
	IS("a copy past the end of memory is refused", cu.upload(at + 8 * MIB - 4, host, 8, streams[0]),
	   CU_INVALID_VALUE);
	IS("each is waited for by itself", cu.stream_wait(streams[1]), CU_OK);
	IS("each is waited for by itself", cu.stream_wait(streams[0]), CU_OK);
	for (size_t i = 0; i < 6 * MIB; i += 4096)
		wrong += word_at(at + i) != (unsigned)i * 2654435761u;
	check("and the bytes are there", wrong == 0, "");
	cu.stream_destroy(streams[0]);
	cu.stream_destroy(streams[1]);
	IS("it is unpinned", cu.host_unpin(host), CU_OK);
	IS("it is unpinned", cu.host_unpin(host + 4 * MIB + 4096), CU_OK);
	IS("once", cu.host_unpin(host), CU_HOST_NOT_PINNED);
	munmap(host, 8 * MIB);
	unmap(at, 8 * MIB);
}

static void check_context(void)
{
	cu_context before = NULL, pushed, popped = NULL, after = NULL;
	cu_device device;
	cu.device_get(&device, 0);
	cu.context_current(&before);
	IS("the primary context is retained again", cu.context_retain(&pushed, device), CU_OK);
	IS("pushed", cu.context_push(pushed), CU_OK);
	IS("popped", cu.context_pop(&popped), CU_OK);
	cu.context_current(&after);
	check("and what was current is current", before == after && popped == pushed, "");
	IS("released", cu.context_release(device), CU_OK);
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	check("a process that sees no GPU is told so", ended(start("blind", 0)) == 0, "");
	unsetenv("CUDA_VISIBLE_DEVICES");
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
