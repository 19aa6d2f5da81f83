/* See workers.h. */
#include "manifest/workers.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

struct start {
	void (*work)(void *context);
	void *context;
};

static void *run(void *argument)
{
	const struct start *start = argument;
	start->work(start->context);
	return NULL;
}

void workers_run(unsigned threads, void (*work)(void *context), void *context)
{
	struct start start = {work, context};
	pthread_t others[WORKERS_MAX];
	unsigned created = 0;
	sigset_t all, bus, before;

	/* They belong to a library inside somebody's process. */
	sigfillset(&all);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (created + 1 < threads && created < WORKERS_MAX &&
	       pthread_create(&others[created], NULL, run, &start) == 0)
		created++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	sigemptyset(&bus);
	sigaddset(&bus, SIGBUS);
	pthread_sigmask(SIG_UNBLOCK, &bus, NULL);
	work(context);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	for (unsigned i = 0; i < created; i++)
		pthread_join(others[i], NULL);
}
