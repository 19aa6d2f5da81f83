/*
 * ipc-cached: holds model weights as file descriptors. This file reads the command line and the configuration, and prints;
 * everything else is the server's.
 */
#include "broker/config.h"
#include "broker/directory.h"
#include "broker/link/rendezvous.h"
#include "broker/protocol.h"
#include "broker/sandbox.h"
#include "broker/server.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <argp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* argp looks it up by name. */
__attribute__((visibility("default"))) const char *argp_program_version = "ipc-cached " IPCC_VERSION;

struct arguments {
	const char *dir;
	const char *config;
};

static const struct argp_option options[] = {
	{"dir", 'd', "DIR", 0,
	 "Directory of the socket (default: $IPC_CACHE_DIR, $RUNTIME_DIRECTORY, or one in /tmp for you)", 0},
	{"config", 'c', "FILE", 0, "Configuration, an INI file; see ipc-cached(8)", 0},
	{0},
};

static error_t parse_option(int key, char *value, struct argp_state *state)
{
	struct arguments *arguments = state->input;
	switch (key) {
	case 'd':
		arguments->dir = value;
		return 0;
	case 'c':
		arguments->config = value;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "no argument is expected: %s", value);
		return EINVAL;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp parser = {
	options,
	parse_option,
	NULL,
	"The weight broker: holds GPU and host weights as file descriptors, so that they outlive "
	"the engine. Runs in the foreground until SIGTERM or SIGINT.",
	NULL,
	NULL,
	NULL};

__attribute__((format(printf, 1, 2))) static void log_line(const char *format, ...)
{
	va_list list;
	char text[1200], line[1300];
	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	int length = snprintf(line, sizeof(line), "ipc-cached: %s\n", text);
	/* Whoever reads the log must not be able to stop the broker by not reading: then lines are lost. */
	struct pollfd log = {.fd = STDERR_FILENO, .events = POLLOUT};
	if (poll(&log, 1, 0) == 1 && (log.revents & POLLOUT) && write(STDERR_FILENO, line, (size_t)length) < 0)
		return; /* nowhere to say so */
}

static int complain(const struct ipcc_error *err)
{
	log_line("%s", err->message);
	return exit_status(err->code);
}

static int serve(const struct config *config)
{
	struct ipcc_error err = {0};
	struct directory directory;
	struct server server;
	int rc = directory_init(&directory, config, &err);
	if (rc != IPCC_OK)
		return complain(&err);
	rc = server_init(&server, config, fd_take(&directory.listen_fd), log_line, &err);
	/* Without it everything works as well; it is one more wall. */
	if (rc == IPCC_OK && sandbox_enter(&err) != IPCC_OK)
		log_line("%s; going on without it", err.message);
	if (rc == IPCC_OK) {
		log_line("%s ready: %s/%s", IPCC_VERSION, config->dir, PROTOCOL_SOCKET_NAME);
		rc = server_run(&server, &err);
		directory_fini(&directory);
		server_fini(&server);
	} else {
		directory_fini(&directory);
	}
	if (rc != IPCC_OK)
		return complain(&err);
	log_line("ended");
	return 0;
}

int main(int argc, char **argv)
{
	struct arguments arguments = {0};
	struct ipcc_error err = {0};
	static struct config config;
	if (fd_guard_standard() < 0)
		return IPCC_FAILED;
	signal(SIGPIPE, SIG_IGN); /* the log's reader may end */
	argp_err_exit_status = IPCC_USAGE;
	error_t failed = argp_parse(&parser, argc, argv, 0, NULL, &arguments);
	if (failed != 0) {
		fail_errno(&err, failed, "cannot parse the arguments");
		return complain(&err);
	}
	config_defaults(&config);
	if (arguments.config != NULL && config_read(&config, arguments.config, &err) != IPCC_OK)
		return complain(&err);
	if (arguments.dir != NULL &&
	    (size_t)snprintf(config.dir, sizeof(config.dir), "%s", arguments.dir) >= sizeof(config.dir)) {
		fail(&err, IPCC_USAGE, "--dir is longer than %zu bytes", sizeof(config.dir) - 1);
		return complain(&err);
	}
	if (config.dir[0] == '\0') {
		char clients[PATH_MAX];
		rendezvous_broker_dir(config.dir);
		rendezvous_client_dir(clients);
		if (strcmp(clients, config.dir) != 0)
			log_line("clients look into %s; for this broker set IPC_CACHE_DIR=%s", clients, config.dir);
	}
	return serve(&config);
}
