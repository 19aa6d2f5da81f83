/* What `doctor` asks of the broker's directory and of the broker. */
#include "broker/client/ipc_cache.h"
#include "broker/link/rendezvous.h"
#include "broker/protocol.h"
#include "tools/clock.h"
#include "tools/findings.h"
#include "tools/text.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *why_directory(const struct common *common)
{
	const char *variable = getenv("IPC_CACHE_DIR");
	if (common->dir != NULL)
		return "named with --dir";
	if (variable != NULL && variable[0] != '\0')
		return "named in $IPC_CACHE_DIR";
	return access("/run/ipc-cache", F_OK) == 0 ? "used because it exists" : "this user's default";
}

static char *how_to_start(const struct common *common, const char *dir)
{
	return common->dir != NULL ? format_text("run: ipc-cached --dir %s", dir) : format_text("run: ipc-cached");
}

/* The library's message says what is wrong, be it the directory or the broker. */
static void add_failure(struct findings *f, const struct common *common, const char *dir, const struct ipcc_error *err)
{
	char *socket = format_text("%s/" PROTOCOL_SOCKET_NAME, dir);
	bool left = err->code == IPCC_NO_BROKER && access(socket, F_OK) == 0;
	findings_add(
		f, FINDING_FAIL, "broker",
		format_text("%s%s (the directory is %s)", err->message,
			    left ? "; its socket is left, and the next broker replaces it" : "", why_directory(common)),
		err->code == IPCC_NO_BROKER
			? how_to_start(common, dir)
			: format_text(
				  "ipc-cached(8) says who is admitted; for a broker of your own set IPC_CACHE_DIR"));
	free(socket);
}

static void add_directory(struct findings *f, const struct common *common, const char *dir)
{
	struct stat st;
	if (stat(dir, &st) == 0)
		findings_add(f, FINDING_OK, "directory",
			     format_text("%s, %s; owner %s, mode %04o", dir, why_directory(common),
					 text_user(st.st_uid).text, st.st_mode & 07777),
			     NULL);
}

static void add_stat(struct findings *f, const struct ipcc_stat *stat, uint64_t round_trip_ns)
{
	char *text = format_text("version %s, pid %d, up %s, %llu models, %.1f us for a round trip", stat->version,
				 stat->pid, text_duration(stat->uptime_ns).text, (unsigned long long)stat->models,
				 (double)round_trip_ns / 1000);
	if (strcmp(stat->version, ipcc_version()) == 0)
		findings_add(f, FINDING_OK, "broker", text, NULL);
	else
		findings_add(
			f, FINDING_WARN, "broker", text,
			format_text("this command is version %s: install the same version of both", ipcc_version()));
	text = format_text("%llu held for models of %llu allowed", (unsigned long long)stat->fds,
			   (unsigned long long)stat->fd_limit);
	if (stat->fds < stat->fd_limit / 5 * 4)
		findings_add(f, FINDING_OK, "broker's files", text, NULL);
	else
		findings_add(f, FINDING_WARN, "broker's files", text,
			     format_text("evict models, or raise the limit of open files of ipc-cached"));
}

void check_broker(struct findings *f, const struct common *common)
{
	char dir[PATH_MAX];
	if (common->dir != NULL)
		snprintf(dir, sizeof(dir), "%s", common->dir);
	else
		rendezvous_client_dir(dir);
	struct ipcc_client *client = NULL;
	struct ipcc_error err;
	struct ipcc_stat stat;
	uint64_t start_ns = 0, end_ns = 0;
	int rc = common_connect(common, &client, &err);
	if (rc == IPCC_OK) {
		start_ns = clock_ns();
		rc = ipcc_ping(client, &err);
		end_ns = clock_ns();
	}
	if (rc == IPCC_OK)
		rc = ipcc_stat(client, &stat, &err);
	if (rc == IPCC_OK) {
		add_directory(f, common, dir);
		add_stat(f, &stat, end_ns - start_ns);
	} else {
		add_failure(f, common, dir, &err);
	}
	ipcc_close(client);
}
