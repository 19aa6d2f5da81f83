/* See directory.h. */
#include "broker/directory.h"

#include "broker/link/rendezvous.h"
#include "broker/protocol.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_NAME "broker.lock"

static const struct {
	mode_t directory, socket;
} modes[] = {
	[OPEN_OWNER] = {0700, 0600},
	[OPEN_GROUP] = {0750, 0660},
	[OPEN_ALL] = {0711, 0666},
};

/* Exactly the configured mode, on the fd that was checked. */
static int set_mode(int fd, const struct config *config, struct ipcc_error *err)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	/* The group first: the one that it had must not get in for a moment. */
	if (config->open == OPEN_GROUP && chown(path, (uid_t)-1, config->open_gid) != 0)
		return fail_errno(err, errno, "cannot give %s to group %u", config->dir, config->open_gid);
	if (chmod(path, modes[config->open].directory) != 0)
		return fail_errno(err, errno, "cannot set the mode of %s", config->dir);
	return IPCC_OK;
}

/* A typing error must not close somebody's folder to everybody: what is no broker's yet must be empty. */
static int check_ours(int dir_fd, const char *dir, struct ipcc_error *err)
{
	if (faccessat(dir_fd, LOCK_NAME, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		return IPCC_OK;
	int listed = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *entries = listed < 0 ? NULL : fdopendir(listed);
	if (entries == NULL) {
		fd_close(&listed);
		return fail_errno(err, errno, "cannot read %s", dir);
	}
	const struct dirent *entry;
	while ((entry = readdir(entries)) != NULL)
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			break;
	bool empty = entry == NULL;
	closedir(entries);
	return empty ? IPCC_OK
		     : fail(err, IPCC_REFUSED, "%s is not empty and no broker's directory; name a new or an empty one",
			    dir);
}

/* The lock file says who holds it, for the message. */
static int lock_directory(int dir_fd, const char *dir, int *lock_fd, struct ipcc_error *err)
{
	cleanup_fd int fd = openat(dir_fd, LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	char pid[32] = "";
	if (fd < 0)
		return fail_errno(err, errno, "cannot open %s/%s", dir, LOCK_NAME);
	if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
		if (errno != EWOULDBLOCK)
			return fail_errno(err, errno, "cannot lock %s/%s", dir, LOCK_NAME);
		ssize_t length = pread(fd, pid, sizeof(pid) - 1, 0);
		pid[length > 0 ? length : 0] = '\0';
		return fail(err, IPCC_BUSY, "a broker (process %d) serves %s already; use it, or another --dir",
			    atoi(pid), dir);
	}
	int length = snprintf(pid, sizeof(pid), "%d\n", getpid());
	if (ftruncate(fd, 0) != 0 || pwrite(fd, pid, (size_t)length, 0) != length)
		return fail_errno(err, errno, "cannot write %s/%s", dir, LOCK_NAME);
	*lock_fd = fd_take(&fd);
	return IPCC_OK;
}

static int group_socket(int dir_fd, const struct config *config, struct ipcc_error *err)
{
	if (config->open == OPEN_GROUP &&
	    fchownat(dir_fd, PROTOCOL_SOCKET_NAME, (uid_t)-1, config->open_gid, AT_SYMLINK_NOFOLLOW) != 0)
		return fail_errno(err, errno, "cannot give the socket to group %u", config->open_gid);
	return IPCC_OK;
}

int directory_init(struct directory *directory, const struct config *config, struct ipcc_error *err)
{
	struct directory made = {.fd = -1, .lock_fd = -1, .listen_fd = -1};
	uid_t self = geteuid();
	if (mkdir(config->dir, 0700) != 0 && errno != EEXIST)
		return fail_errno(err, errno, "cannot make %s", config->dir);
	int rc = rendezvous_open(config->dir, &self, 1, &made.fd, err);
	if (rc == IPCC_OK)
		rc = check_ours(made.fd, config->dir, err);
	if (rc == IPCC_OK)
		rc = lock_directory(made.fd, config->dir, &made.lock_fd, err);
	if (rc == IPCC_OK)
		rc = set_mode(made.fd, config, err);
	if (rc == IPCC_OK)
		rc = rendezvous_listen(made.fd, config->dir, modes[config->open].socket, &made.listen_fd, err);
	if (rc == IPCC_OK)
		rc = group_socket(made.fd, config, err);
	if (rc != IPCC_OK) {
		fd_close(&made.listen_fd);
		fd_close(&made.lock_fd);
		fd_close(&made.fd);
		return rc;
	}
	*directory = made;
	return IPCC_OK;
}

void directory_fini(struct directory *directory)
{
	unlinkat(directory->fd, PROTOCOL_SOCKET_NAME, 0);
	fd_close(&directory->listen_fd);
	fd_close(&directory->lock_fd);
	fd_close(&directory->fd);
}
