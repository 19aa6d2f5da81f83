/* See guard.h. */
#include "loader/guard.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned installed;
static struct sigaction before;

static __thread struct {
	uintptr_t base;
	size_t bytes; /* 0: nothing is guarded */
	sigjmp_buf back;
} guarded;

static void on_fault(int number, siginfo_t *info, void *context)
{
	uintptr_t at = (uintptr_t)info->si_addr;

	if (at >= guarded.base && at - guarded.base < guarded.bytes)
		siglongjmp(guarded.back, 1);
	if (before.sa_flags & SA_SIGINFO)
		before.sa_sigaction(number, info, context);
	else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
		before.sa_handler(number);
	else
		sigaction(SIGBUS, &before, NULL); /* the access is repeated, and ends the process */
}

void guard_install(void)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};

	pthread_mutex_lock(&lock);
	if (installed++ == 0)
		sigaction(SIGBUS, &action, &before);
	pthread_mutex_unlock(&lock);
}

void guard_remove(void)
{
	pthread_mutex_lock(&lock);
	if (--installed == 0)
		sigaction(SIGBUS, &before, NULL);
	pthread_mutex_unlock(&lock);
}

int guard_run(const void *base, size_t bytes, int (*work)(void *context), void *context)
{
	int result;

	guarded.base = (uintptr_t)base;
	guarded.bytes = bytes;
	/* SA_NODEFER leaves the signal mask as it is, so it need not be saved. */
	if (sigsetjmp(guarded.back, 0) == 0)
		result = work(context);
	else
		result = -EFAULT;
	guarded.bytes = 0;
	return result;
}
