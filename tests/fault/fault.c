/*
 * LD_PRELOAD library that makes one call fail: IPC_CACHE_FAULT=FUNCTION:N:ERRNO, as "fallocate:2:28", lets the N-th call
 * of that function in the process fail with that errno (N 0: every call). With IPC_CACHE_FAULT_LOG=FILE a line is
 * appended there when it did, so that a test knows whether the fault was reached.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static atomic_uint calls;

static void note(const char *function)
{
	const char *path = getenv("IPC_CACHE_FAULT_LOG");
	static int (*real_open)(const char *, int, ...);
	if (path == NULL)
		return;
	if (real_open == NULL)
		real_open = dlsym(RTLD_NEXT, "open");
	int fd = real_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd >= 0) {
		dprintf(fd, "%s\n", function);
		close(fd);
	}
}

/* Is this the call that fails? Sets errno. */
static bool fails(const char *function)
{
	static char name[64];
	static unsigned number, code;
	if (name[0] == '\0') {
		const char *fault = getenv("IPC_CACHE_FAULT");
		if (fault == NULL || sscanf(fault, "%63[^:]:%u:%u", name, &number, &code) != 3)
			strcpy(name, "none");
	}
	if (strcmp(name, function) != 0)
		return false;
	unsigned n = atomic_fetch_add(&calls, 1) + 1;
	if (number != 0 && n != number)
		return false;
	note(function);
	errno = (int)code;
	return true;
}

#define REAL(type, name, ...)                                                                                          \
	static type (*real)(__VA_ARGS__);                                                                              \
	if (real == NULL)                                                                                              \
	real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define WRAP(type, failed, name, parameters, arguments, ...)                                                           \
	type name parameters                                                                                           \
	{                                                                                                              \
		REAL(type, name, __VA_ARGS__);                                                                         \
		return fails(#name) ? failed : real arguments;                                                         \
	}

WRAP(int, -1, memfd_create, (const char *name, unsigned flags), (name, flags), const char *, unsigned)
WRAP(int, -1, ftruncate, (int fd, off_t length), (fd, length), int, off_t)
WRAP(int, -1, fallocate, (int fd, int mode, off_t offset, off_t length), (fd, mode, offset, length), int, int, off_t,
     off_t)
WRAP(void *, MAP_FAILED, mmap, (void *at, size_t length, int prot, int flags, int fd, off_t offset),
     (at, length, prot, flags, fd, offset), void *, size_t, int, int, int, off_t)
WRAP(ssize_t, -1, pread, (int fd, void *to, size_t bytes, off_t offset), (fd, to, bytes, offset), int, void *, size_t,
     off_t)
WRAP(ssize_t, -1, pwrite, (int fd, const void *from, size_t bytes, off_t offset), (fd, from, bytes, offset), int,
     const void *, size_t, off_t)
WRAP(int, -1, epoll_ctl, (int epoll, int operation, int fd, struct epoll_event *event), (epoll, operation, fd, event),
     int, int, int, struct epoll_event *)
WRAP(int, -1, accept4, (int fd, struct sockaddr *address, socklen_t *length, int flags), (fd, address, length, flags),
     int, struct sockaddr *, socklen_t *, int)
WRAP(int, -1, socket, (int domain, int type, int protocol), (domain, type, protocol), int, int, int)
WRAP(ssize_t, -1, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags), int,
     const struct msghdr *, int)
WRAP(ssize_t, -1, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags), int, struct msghdr *, int)
WRAP(int, -1, getsockopt, (int fd, int level, int option, void *value, socklen_t *length),
     (fd, level, option, value, length), int, int, int, void *, socklen_t *)

/* glibc's own names: dlsym itself allocates. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);

void *malloc(size_t bytes)
{
	return fails("malloc") ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
	return fails("calloc") ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
	return fails("realloc") ? NULL : __libc_realloc(old, bytes);
}

int fcntl(int fd, int command, ...)
{
	REAL(int, fcntl, int, int, ...);
	va_list list;
	va_start(list, command);
	void *argument = va_arg(list, void *);
	va_end(list);
	return fails("fcntl") ? -1 : real(fd, command, argument);
}
