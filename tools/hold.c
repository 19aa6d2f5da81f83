/* Stays attached until told to end; see hold.h. */
#include "tools/hold.h"

#include "manifest/fail.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

int hold_prepare(struct hold *h, struct ipcc_error *err)
{
	sigset_t signals;
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGHUP);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	h->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
	return h->signal_fd < 0 ? fail_errno(err, errno, "signalfd") : IPCC_OK;
}

static bool input_has_end(void)
{
	struct stat st;
	return fstat(STDIN_FILENO, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode));
}

/* Reads away what came in. Is standard input at its end? */
static bool input_ended(void)
{
	char buffer[4096];
	ssize_t got = read(STDIN_FILENO, buffer, sizeof(buffer));
	return got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN);
}

/* What the broker said of the lease: an error once the bytes are not to be used any more. */
static int check_lease(struct ipcc_model *model, struct pollfd *broker, struct ipcc_error *err)
{
	switch (ipcc_lease_state(model)) {
	case IPCC_LEASE_EVICTED:
		return fail(err, IPCC_REFUSED, "the model was evicted by force; letting go of it");
	case IPCC_LEASE_LOST:
		return fail(err, IPCC_NOT_FOUND,
			    "the model's keeper has ended, and its memory with it; letting go of it");
	case IPCC_LEASE_ENDED:
		broker->fd = -1;
		return IPCC_OK;
	default:
		return IPCC_OK;
	}
}

int hold_wait(struct hold *h, struct ipcc_client *client, struct ipcc_model *model, struct ipcc_error *err)
{
	struct pollfd waited[] = {
		{.fd = h->signal_fd, .events = POLLIN},
		{.fd = input_has_end() ? STDIN_FILENO : -1, .events = POLLIN},
		{.fd = ipcc_fd(client), .events = POLLIN},
	};
	int rc = IPCC_OK;
	for (bool told = false; rc == IPCC_OK && !told;) {
		if (poll(waited, 3, -1) < 0) {
			if (errno != EINTR)
				rc = fail_errno(err, errno, "poll");
			continue;
		}
		/* First: who is told to end after the model was lost still says that it was. */
		if (waited[2].revents != 0)
			rc = check_lease(model, &waited[2], err);
		told = waited[0].revents != 0 || (waited[1].revents != 0 && input_ended());
	}
	close(h->signal_fd);
	return rc;
}
