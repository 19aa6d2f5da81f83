/* Two queues of fds, each with threads that are started when there is work for them; see reaper.h. */
#include "broker/reaper.h"

#include "manifest/fd.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define STACK_BYTES (64 << 10)
/* How long the end of the broker waits for foreign fds. The process's end closes them in any case. */
#define STOP_FOREIGN_MS 200

struct item {
	int fd;
	uid_t uid;
};

#define MAX_THREADS 32

struct lane {
	unsigned max_threads;
	unsigned max_threads_of_uid;
	pthread_mutex_t lock;
	pthread_cond_t work; /* something was queued, or the lane stops */
	pthread_cond_t ended;
	struct item *queue;
	unsigned queued, capacity;
	uid_t closing_of[MAX_THREADS]; /* whose fds were taken from the queue and are not closed yet */
	unsigned closing;
	unsigned threads, idle;
	bool stopping;
};

static struct lane memory = {.max_threads = 1,
			     .max_threads_of_uid = 1,
			     .lock = PTHREAD_MUTEX_INITIALIZER,
			     .work = PTHREAD_COND_INITIALIZER,
			     .ended = PTHREAD_COND_INITIALIZER};
/* So many fds may hang before others wait behind them; of one uid, so few. */
static struct lane foreign = {.max_threads = MAX_THREADS,
			      .max_threads_of_uid = 4,
			      .lock = PTHREAD_MUTEX_INITIALIZER,
			      .work = PTHREAD_COND_INITIALIZER,
			      .ended = PTHREAD_COND_INITIALIZER};

static unsigned closing_of(const struct lane *lane, uid_t uid)
{
	unsigned count = 0;
	for (unsigned i = 0; i < lane->closing; i++)
		count += lane->closing_of[i] == uid;
	return count;
}

/* Takes the newest item of a uid that does not occupy its share of threads yet. */
static bool lane_take(struct lane *lane, struct item *item)
{
	for (unsigned i = lane->queued; i-- > 0;) {
		if (closing_of(lane, lane->queue[i].uid) >= lane->max_threads_of_uid)
			continue;
		*item = lane->queue[i];
		lane->queue[i] = lane->queue[--lane->queued];
		lane->closing_of[lane->closing++] = item->uid;
		return true;
	}
	return false;
}

static void lane_closed(struct lane *lane, uid_t uid)
{
	unsigned i = 0;
	while (lane->closing_of[i] != uid)
		i++;
	lane->closing_of[i] = lane->closing_of[--lane->closing];
	pthread_cond_signal(&lane->work); /* another one of this uid may have its turn */
}

static void *reap(void *context)
{
	struct lane *lane = context;
	pthread_mutex_lock(&lane->lock);
	for (;;) {
		struct item item;
		bool taken;
		lane->idle++;
		while (!(taken = lane_take(lane, &item)) && !(lane->stopping && lane->queued == 0))
			pthread_cond_wait(&lane->work, &lane->lock);
		lane->idle--;
		if (!taken)
			break;
		pthread_mutex_unlock(&lane->lock);
		/* A socket that lingers is told not to; other files do not know the option. */
		struct linger off = {0};
		setsockopt(item.fd, SOL_SOCKET, SO_LINGER, &off, sizeof(off));
		close(item.fd);
		pthread_mutex_lock(&lane->lock);
		lane_closed(lane, item.uid);
	}
	lane->threads--;
	pthread_cond_broadcast(&lane->ended);
	pthread_mutex_unlock(&lane->lock);
	return NULL;
}

/* With all signals blocked: they are for the loop. */
static void lane_start_thread(struct lane *lane)
{
	sigset_t all, before;
	pthread_attr_t attributes;
	pthread_t thread;
	size_t least = (size_t)sysconf(_SC_THREAD_STACK_MIN);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, least > STACK_BYTES ? least : STACK_BYTES);
	if (pthread_create(&thread, &attributes, reap, lane) == 0)
		lane->threads++;
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static bool lane_has_room(struct lane *lane)
{
	if (lane->queued < lane->capacity)
		return true;
	unsigned capacity = lane->capacity == 0 ? 64 : 2 * lane->capacity;
	struct item *queue = realloc(lane->queue, capacity * sizeof(*queue));
	if (queue == NULL)
		return false;
	lane->queue = queue;
	lane->capacity = capacity;
	return true;
}

static void lane_put(struct lane *lane, int *fd, uid_t uid)
{
	if (*fd < 0)
		return;
	pthread_mutex_lock(&lane->lock);
	bool taken = lane_has_room(lane);
	if (taken) {
		lane->queue[lane->queued++] = (struct item){.fd = fd_take(fd), .uid = uid};
		if (lane->idle < lane->queued && lane->threads < lane->max_threads)
			lane_start_thread(lane);
		taken = lane->threads > 0;
		if (!taken)
			*fd = lane->queue[--lane->queued].fd;
		pthread_cond_signal(&lane->work);
	}
	pthread_mutex_unlock(&lane->lock);
	if (!taken)
		fd_close(fd); /* no memory and no thread: waiting is all that is left */
}

/* Everything that is queued is still closed. */
static void lane_stop(struct lane *lane, long limit_ms)
{
	struct timespec until;
	int waited = 0;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += limit_ms / 1000;
	until.tv_nsec += limit_ms % 1000 * 1000000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	pthread_mutex_lock(&lane->lock);
	lane->stopping = true;
	pthread_cond_broadcast(&lane->work);
	while (lane->threads > 0 && waited == 0)
		waited = pthread_cond_timedwait(&lane->ended, &lane->lock, &until);
	if (lane->threads == 0) {
		free(lane->queue);
		lane->queue = NULL;
		lane->capacity = 0;
		lane->stopping = false;
	}
	pthread_mutex_unlock(&lane->lock);
}

void reaper_close_memory(int *fd)
{
	lane_put(&memory, fd, 0);
}

void reaper_close_foreign(int *fd, uid_t uid)
{
	lane_put(&foreign, fd, uid);
}

unsigned reaper_foreign_left(void)
{
	pthread_mutex_lock(&foreign.lock);
	unsigned left = foreign.queued + foreign.closing;
	pthread_mutex_unlock(&foreign.lock);
	return left;
}

unsigned reaper_foreign_left_of(uid_t uid)
{
	pthread_mutex_lock(&foreign.lock);
	unsigned left = closing_of(&foreign, uid);
	for (unsigned i = 0; i < foreign.queued; i++)
		left += foreign.queue[i].uid == uid;
	pthread_mutex_unlock(&foreign.lock);
	return left;
}

void reaper_stop(void)
{
	lane_stop(&memory, INT_MAX);
	lane_stop(&foreign, STOP_FOREIGN_MS);
}
