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

int hold_wait(struct hold *h, struct ipcc_client *client, struct ipcc_model *model, struct ipcc_error *err)
{
	struct pollfd waited[] = {
		{.fd = h->signal_fd, .events = POLLIN},
		{.fd = input_has_end() ? STDIN_FILENO : -1, .events = POLLIN},
		{.fd = ipcc_fd(client), .events = POLLIN},
	};
	int rc = IPCC_OK;
	for (;;) {
		if (poll(waited, 3, -1) < 0 && errno != EINTR) {
			rc = fail_errno(err, errno, "poll");
			break;
		}
		if (waited[0].revents != 0 || (waited[1].revents != 0 && input_ended()))
			break;
		if (waited[2].revents == 0)
			continue;
		enum ipcc_lease lease = ipcc_lease_state(model);
		if (lease == IPCC_LEASE_EVICTED) {
			rc = fail(err, IPCC_REFUSED, "the model was evicted by force; letting go of it");
			break;
		}
		if (lease == IPCC_LEASE_LOST) {
			rc = fail(err, IPCC_NOT_FOUND,
				  "the model's keeper has ended, and its memory with it; letting go of it");
			break;
		}
		if (lease == IPCC_LEASE_ENDED)
			waited[2].fd = -1;
	}
	close(h->signal_fd);
	return rc;
}
