/*
 * Reads by threads with preadv; see reader.h. One queue of slots in the order of their start; `lock` guards it and the
 * slots' states. Without a single thread the reader does not come to be; fewer than wanted are as good.
 */
#include "loader/reader.h"

#include "manifest/fd.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/uio.h>

#define MAX_THREADS 4

struct threads {
	pthread_mutex_t lock;
	pthread_cond_t started; /* or closing */
	pthread_cond_t finished;
	bool closing;
	unsigned *queue; /* a ring of slot_count entries */
	unsigned first, count;
	unsigned thread_count;
	pthread_t threads[MAX_THREADS];
};

static void read_slot(struct reader *reader, unsigned slot)
{
	struct reader_slot *s = &reader->slots[slot];
	ssize_t got;

	do {
		struct iovec to = {reader_buffer(reader, slot) + s->done, s->bytes - s->done};
		got = preadv(s->fd, &to, 1, (off_t)(s->offset + s->done));
		if (got < 0)
			got = -errno;
	} while (reader_advance(s, got));
}

static void *serve(void *argument)
{
	struct reader *reader = argument;
	struct threads *t = reader->state;

	pthread_mutex_lock(&t->lock);
	for (;;) {
		while (t->count == 0 && !t->closing)
			pthread_cond_wait(&t->started, &t->lock);
		if (t->count == 0)
			break;
		unsigned slot = t->queue[t->first];
		t->first = (t->first + 1) % reader->slot_count;
		t->count--;
		pthread_mutex_unlock(&t->lock);
		read_slot(reader, slot);
		pthread_mutex_lock(&t->lock);
		reader_end(&reader->slots[slot]);
		pthread_cond_signal(&t->finished);
	}
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

static void threads_fini(struct reader *reader)
{
	struct threads *t = reader->state;

	pthread_mutex_lock(&t->lock);
	t->closing = true;
	t->count = 0;
	pthread_cond_broadcast(&t->started);
	pthread_mutex_unlock(&t->lock);
	for (unsigned i = 0; i < t->thread_count; i++)
		pthread_join(t->threads[i], NULL);
	pthread_cond_destroy(&t->started);
	pthread_cond_destroy(&t->finished);
	pthread_mutex_destroy(&t->lock);
	free(t->queue);
	free(t);
}

static int threads_init(struct reader *reader)
{
	struct threads *t = calloc(1, sizeof(*t));
	sigset_t all, before;
	int r = 0;

	if (t == NULL)
		return -ENOMEM;
	t->queue = calloc(reader->slot_count, sizeof(*t->queue));
	if (t->queue == NULL) {
		free(t);
		return -ENOMEM;
	}
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->started, NULL);
	pthread_cond_init(&t->finished, NULL);
	reader->state = t;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (t->thread_count < MAX_THREADS && t->thread_count < reader->slot_count) {
		r = pthread_create(&t->threads[t->thread_count], NULL, serve, reader);
		if (r != 0)
			break;
		t->thread_count++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (t->thread_count == 0) {
		threads_fini(reader);
		return -r;
	}
	return 0;
}

static void threads_start(struct reader *reader, unsigned slot)
{
	struct threads *t = reader->state;

	pthread_mutex_lock(&t->lock);
	t->queue[(t->first + t->count) % reader->slot_count] = slot;
	t->count++;
	pthread_cond_signal(&t->started);
	pthread_mutex_unlock(&t->lock);
}

static void threads_wait(struct reader *reader, unsigned slot)
{
	struct threads *t = reader->state;

	pthread_mutex_lock(&t->lock);
	while (reader->slots[slot].pending)
		pthread_cond_wait(&t->finished, &t->lock);
	pthread_mutex_unlock(&t->lock);
}

const struct reader_kind reader_threads = {
	.init = threads_init,
	.start = threads_start,
	.wait = threads_wait,
	.fini = threads_fini,
};
