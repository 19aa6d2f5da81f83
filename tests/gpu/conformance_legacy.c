/* What is relied on of legacy IPC: memory without an fd, handles to it, and what becomes of them when it goes. */
#include "tests/gpu/conformance.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define POINTER_DEVICE_ORDINAL 9 /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */

/* The device that the driver names, or -1. */
static int whose(cu_pointer at)
{
	int ordinal = -1;
	return cu.pointer_attribute(&ordinal, POINTER_DEVICE_ORDINAL, at) == CU_OK ? ordinal : -1;
}

/* ---- other processes ---- */

/* Opens a legacy handle that comes over the socket. */
int role_legacy(int socket)
{
	cu_ipc_handle handle;
	cu_pointer at = 0;
	raw_must(raw_load(), "cuInit");
	raw_context(0);
	if (read(socket, &handle, sizeof(handle)) != sizeof(handle))
		return 1;
	raw_must(cu.ipc_open(&at, handle, CU_IPC_LAZY_PEER), "cuIpcOpenMemHandle");
	if (word_at(at) != 0x1e6acd)
		return 2;
	put_word(at, 0x1e6ace);
	return cu.ipc_close(at) == CU_OK ? 0 : 3;
}

/* Allocates, fills, sends the handle, and waits for a byte to free it, or to be killed. */
int role_exporter(int socket)
{
	cu_pointer at = 0;
	cu_ipc_handle handle;
	char byte;
	raw_must(raw_load(), "cuInit");
	raw_context(0);
	raw_must(cu.allocate(&at, 4 * MIB), "cuMemAlloc");
	put_word(at, 0x600d);
	put_word(at + 4 * MIB - 4, 0x900d);
	raw_must(cu.ipc_get(&handle, at), "cuIpcGetMemHandle");
	if (write(socket, &handle, sizeof(handle)) != sizeof(handle) || read(socket, &byte, 1) != 1)
		return 1;
	raw_must(cu.free(at), "cuMemFree");
	if (write(socket, &byte, 1) != 1)
		return 1;
	pause();
	return 0;
}

/* Opens a handle of a GPU that it does not see, as if it were this one's. */
int role_hidden(int socket)
{
	cu_ipc_handle handle;
	cu_pointer at = 0;
	raw_must(raw_load(), "cuInit");
	raw_context(0);
	if (read(socket, &handle, sizeof(handle)) != sizeof(handle))
		return 1;
	raw_must(cu.ipc_open(&at, handle, CU_IPC_LAZY_PEER), "cuIpcOpenMemHandle");
	return whose(at) == 0 && word_at(at) == 0x600d ? 0 : 2;
}

/* ---- checks ---- */

static void check_legacy(void)
{
	cu_pointer at = 0, opened = 0;
	cu_ipc_handle handle;
	int sockets[2];
	cu_memory memory = create(2 * MIB);
	cu_pointer mapped = map(memory, 2 * MIB, CU_ACCESS_READWRITE);
	IS("memory that has an fd has no legacy handle", cu.ipc_get(&handle, mapped), CU_INVALID_VALUE);
	cu.release(memory);
	unmap(mapped, 2 * MIB);
	raw_must(cu.allocate(&at, 4 * MIB), "cuMemAlloc");
	put_word(at, 0x1e6acd);
	IS("other memory has one", cu.ipc_get(&handle, at), CU_OK);
	IS("which its own process cannot open", cu.ipc_open(&opened, handle, CU_IPC_LAZY_PEER), CU_INVALID_CONTEXT);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0 ||
	    write(sockets[0], &handle, sizeof(handle)) != sizeof(handle))
		exit(1);
	check("another process reads and writes through it", ended(start("legacy", sockets[1])) == 0, "");
	check("and this one sees it", word_at(at) == 0x1e6ace, "");
	cu.free(at);
	close(sockets[0]);
	close(sockets[1]);
}

struct exporter {
	pid_t pid;
	int socket;
	cu_ipc_handle handle;
};

/* `visible`: the GPU whose memory it is, or NULL. */
static struct exporter start_exporter(const char *visible)
{
	struct exporter e;
	int sockets[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
		exit(1);
	if (visible != NULL)
		setenv("CUDA_VISIBLE_DEVICES", visible, 1);
	e.pid = start("exporter", sockets[1]);
	unsetenv("CUDA_VISIBLE_DEVICES");
	close(sockets[1]);
	e.socket = sockets[0];
	if (read(e.socket, &e.handle, sizeof(e.handle)) != sizeof(e.handle))
		exit(1);
	return e;
}

static void end_exporter(const struct exporter *e)
{
	kill(e->pid, SIGKILL);
	ended(e->pid);
	close(e->socket);
}

static void check_legacy_reader(void)
{
	struct exporter e = start_exporter(NULL);
	cu_pointer at = 0, again = 0, base = 0;
	size_t bytes = 0;
	IS("a legacy handle is opened", cu.ipc_open(&at, e.handle, CU_IPC_LAZY_PEER), CU_OK);
	check("and covers the whole allocation", word_at(at) == 0x600d && word_at(at + 4 * MIB - 4) == 0x900d, "");
	IS("what is opened tells its extent", cu.address_range(&base, &bytes, at), CU_OK);
	check("from its first byte to its last", base == at && bytes >= 4 * MIB, "");
	check("and its GPU", whose(at) == 0, "");
	IS("it is opened a second time", cu.ipc_open(&again, e.handle, CU_IPC_LAZY_PEER), CU_OK);
	check("at the same address", again == at, "");
	IS("closed once", cu.ipc_close(at), CU_OK);
	check("it is still there", word_at(at) == 0x600d, "");
	end_exporter(&e);
	IS("after its exporter's end what is open may be opened again", cu.ipc_open(&again, e.handle, CU_IPC_LAZY_PEER),
	   CU_OK);
	check("at the same address, which still has its bytes", again == at && word_at(at) == 0x600d, "");
	IS("closed", cu.ipc_close(again), CU_OK);
	IS("closed", cu.ipc_close(at), CU_OK);
	IS("and then it cannot be opened any more", cu.ipc_open(&again, e.handle, CU_IPC_LAZY_PEER), CU_INVALID_HANDLE);
}

static void check_legacy_free(void)
{
	struct exporter e = start_exporter(NULL);
	cu_pointer at = 0, again;
	char byte = 'f';
	raw_must(cu.ipc_open(&at, e.handle, CU_IPC_LAZY_PEER), "cuIpcOpenMemHandle");
	if (write(e.socket, &byte, 1) != 1 || read(e.socket, &byte, 1) != 1)
		exit(1);
	check("freed by its exporter, what is mapped still has its bytes", word_at(at) == 0x600d, "");
	IS("closed", cu.ipc_close(at), CU_OK);
	IS("what its exporter has freed cannot be opened any more", cu.ipc_open(&again, e.handle, CU_IPC_LAZY_PEER),
	   CU_INVALID_VALUE);
	end_exporter(&e);
	check("the context lives on", cu.context_wait() == CU_OK, "");
}

static void check_legacy_peers(void)
{
	int count = 0, can = 0, sockets[2];
	cu_pointer at = 0;
	cu.device_count(&count);
	if (count < 2 || cu.device_can_access(&can, 0, 1) != CU_OK || !can)
		return;
	struct exporter e = start_exporter("1");
	IS("a handle of another GPU is opened", cu.ipc_open(&at, e.handle, CU_IPC_LAZY_PEER), CU_OK);
	check("and passes for memory of the GPU that opened it: a trap", whose(at) == 0, "");
	check("its bytes come over the link", word_at(at) == 0x600d, "");
	IS("closed", cu.ipc_close(at), CU_OK);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0 ||
	    write(sockets[0], &e.handle, sizeof(e.handle)) != sizeof(e.handle))
		exit(1);
	setenv("CUDA_VISIBLE_DEVICES", "0", 1);
	check("so does one of a GPU that is not visible", ended(start("hidden", sockets[1])) == 0, "");
	unsetenv("CUDA_VISIBLE_DEVICES");
	close(sockets[0]);
	close(sockets[1]);
	end_exporter(&e);
}

void check_legacy_handles(void)
{
	check_legacy();
	check_legacy_reader();
	check_legacy_free();
	check_legacy_peers();
}
