/*
 * File descriptors and memfds. Every fd of the project is CLOEXEC from birth and has one owner; a variable that gave its
 * fd away becomes -1 (fd_take).
 */
#ifndef IPCC_MANIFEST_FD_H
#define IPCC_MANIFEST_FD_H

#include "manifest/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Opens /dev/null in the place of a standard stream that is closed: a socket or manifest that got its number would receive
 * what is printed. What is put there can be neither read nor written, so that using the stream still fails. 0 or a negative
 * errno. */
int fd_guard_standard(void);

/* Closes *fd unless it is negative, and leaves -1 there; errno is kept. */
void fd_close(int *fd);

/* `cleanup_fd int fd = open(...)`: closed when the scope ends. */
#define cleanup_fd __attribute__((cleanup(fd_close)))
/* `cleanup_free char *p = ...` */
#define cleanup_free __attribute__((cleanup(free_pointer)))
void free_pointer(void *pointer_to_pointer);

/* Moves the fd out of its variable. */
static inline int fd_take(int *fd)
{
	int taken = *fd;
	*fd = -1;
	return taken;
}

/* Reads exactly `bytes` at `offset`, over EINTR and short reads. 0, or a negative errno; -ENODATA at an early end. */
int fd_read_exact(int fd, void *to, size_t bytes, uint64_t offset);
/* Writes exactly `bytes` at `offset`. 0 or a negative errno. */
int fd_write_exact(int fd, const void *from, size_t bytes, uint64_t offset);

/* A new sealable memfd of `bytes` bytes, all pages allocated (a hole would fault in the reader). Returns the fd or a
 * negative errno; -ENOMEM at once for more than the whole machine has. Whether so much is *free*, and within the
 * cgroup's limit, the caller must know before: the kernel allocates until something is killed. `name` shows in
 * /proc/PID/fd. */
int memfd_new(const char *name, uint64_t bytes);

/* The same without pages: they come as they are written, and with memfd_complete. */
int memfd_new_sparse(const char *name, uint64_t bytes);
/* Allocates the pages that a memfd of `bytes` bytes lacks; costs nothing when it lacks none. 0 or a negative errno. */
int memfd_complete(int fd, uint64_t bytes);

/* F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL. 0 or a negative errno; -EBUSY while a writable or
 * shared mapping made through a writable fd, or a pinned page, is left. */
int memfd_seal(int fd);

/* Size and identity of a received memfd. */
struct memfd_facts {
	uint64_t bytes;
	dev_t device;
	ino_t inode;
};

/* Is `fd` a memfd, open for reading and writing, with all four seals of memfd_seal, and no holes? (Readers' faults in a sealed but sparse
 * memfd would allocate memory.) Stores size and identity. IPCC_INVALID with the reason otherwise; `what` names the fd
 * in the message ("segment 3"). Never blocks, whatever the fd is. */
int memfd_check(int fd, const char *what, struct memfd_facts *facts, struct ipcc_error *err);
/* The same of memory that may still be written to: without the seal WRITE. */
int memfd_check_sized(int fd, const char *what, struct memfd_facts *facts, struct ipcc_error *err);

#endif
