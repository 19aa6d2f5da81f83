/* Ctrl-C; see interrupt.h. */
#include "tools/interrupt.h"

#include "broker/client/ipc_cache.h"

#include <errno.h>
#include <signal.h>

/* A signal handler gets no context of its own. */
static atomic_bool interrupted;
static struct ipcc_client *_Atomic watched;

static void on_signal(int number)
{
	(void)number;
	int saved = errno;
	atomic_store(&interrupted, true);
	struct ipcc_client *client = atomic_load(&watched);
	if (client != NULL)
		ipcc_cancel(client); /* is async-signal-safe */
	errno = saved;
}

const atomic_bool *interrupt_watch(struct ipcc_client *client)
{
	static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction action = {.sa_handler = client == NULL ? SIG_DFL : on_signal, .sa_flags = (int)SA_RESETHAND};
	sigemptyset(&action.sa_mask);
	atomic_store(&watched, client);
	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		struct sigaction old;
		/* What the caller has us ignore (nohup, a shell's background job) stays ignored. */
		if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
			sigaction(numbers[i], &action, NULL);
	}
	return &interrupted;
}
