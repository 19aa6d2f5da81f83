/* What one process can do to another's memory, and what outlives it; contexts. See conformance.c. */
#include "tests/gpu/conformance.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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
int role_creator(int socket)
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
int role_offender(int fd)
{
	raw_must(raw_load(), "cuInit");
	raw_context(0);
	cu_pointer at = map(import(fd), 2 * MIB, CU_ACCESS_READ);
	cu_result stored = raw_store(at, 0xbad), later = cu.context_wait();
	return stored == CU_ILLEGAL_ADDRESS && later == CU_ILLEGAL_ADDRESS ? 0 : 1;
}

/* The same with a read-write mapping: it works. */
int role_writer(int fd)
{
	raw_must(raw_load(), "cuInit");
	raw_context(0);
	return raw_store(map(import(fd), 2 * MIB, CU_ACCESS_READWRITE), 0x1234) == CU_OK ? 0 : 1;
}

int role_blind(int fd)
{
	(void)fd;
	return raw_load() == CU_NO_DEVICE ? 0 : 1;
}

void check_read_only(void)
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

void check_survival(void)
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

void check_context(void)
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
