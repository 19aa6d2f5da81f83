/* fds travel to the thread as integers through a pipe; see reaper.h. */
#include "broker/reaper.h"

#include "manifest/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

/* One reaper per process: the pipe's writing end, or -1. */
static int reaper_pipe = -1;
static pthread_t reaper_thread;

static void *reap(void *argument)
{
	int source = (int)(intptr_t)argument, fd;
	while (read(source, &fd, sizeof(fd)) == sizeof(fd))
		close(fd);
	close(source);
	return NULL;
}

int reaper_start(void)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC) != 0)
		return -errno;
	if (fcntl(ends[1], F_SETFL, O_NONBLOCK) != 0) {
		int failed = errno;
		close(ends[0]);
		close(ends[1]);
		return -failed;
	}
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_t attributes;
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 64 << 10);
	int rc = pthread_create(&reaper_thread, &attributes, reap, (void *)(intptr_t)ends[0]);
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc != 0) {
		close(ends[0]);
		close(ends[1]);
		return -rc;
	}
	reaper_pipe = ends[1];
	return 0;
}

void reaper_close(int *fd)
{
	/* Writes of less than PIPE_BUF are all or nothing. */
	if (*fd >= 0 && reaper_pipe >= 0 && write(reaper_pipe, fd, sizeof(*fd)) == sizeof(*fd))
		*fd = -1;
	fd_close(fd);
}

void reaper_stop(void)
{
	if (reaper_pipe < 0)
		return;
	fd_close(&reaper_pipe);
	pthread_join(reaper_thread, NULL);
}
