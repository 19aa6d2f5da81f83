/* ipc-cache stat: what the broker holds and has done since its start. */
#include "broker/client/ipc_cache.h"
#include "tools/output.h"
#include "tools/verb.h"

static void print_stat(const struct ipcc_stat *s)
{
	fact("broker", "version %s, pid %d, running as %s for %s", s->version, s->pid, text_user(s->uid).text,
	     text_duration(s->uptime_ns).text);
	fact("models", "%llu resident, %llu loading, %s", (unsigned long long)s->models, (unsigned long long)s->loading,
	     text_bytes(s->bytes).text);
	fact("leases", "%llu", (unsigned long long)s->leases);
	fact("connections", "%llu open, %llu accepted, %llu requests or connections refused",
	     (unsigned long long)s->connections, (unsigned long long)s->accepted, (unsigned long long)s->refused);
	fact("fds", "%llu held for models, limit %llu", (unsigned long long)s->fds, (unsigned long long)s->fd_limit);
	fact("since start", "%llu attaches, %llu mismatches, %llu commits, %llu evictions",
	     (unsigned long long)s->attaches, (unsigned long long)s->mismatches, (unsigned long long)s->commits,
	     (unsigned long long)s->evictions);
}

static void print_stat_json(const struct ipcc_stat *s)
{
	const struct {
		const char *name;
		uint64_t value;
	} numbers[] = {
		{"pid", (uint64_t)s->pid},
		{"uid", s->uid},
		{"uptime_ns", s->uptime_ns},
		{"connections", s->connections},
		{"models", s->models},
		{"loading", s->loading},
		{"leases", s->leases},
		{"bytes", s->bytes},
		{"fds", s->fds},
		{"fd_limit", s->fd_limit},
		{"accepted", s->accepted},
		{"refused", s->refused},
		{"attaches", s->attaches},
		{"mismatches", s->mismatches},
		{"commits", s->commits},
		{"evictions", s->evictions},
	};
	json_t *document = json_pack("{s:o, s:o}", "version", json_text(s->version), "instance",
				     json_hex(s->instance, sizeof(s->instance)));
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		json_object_set_new(document, numbers[i].name, json_number(numbers[i].value));
	print_json(document);
}

int verb_stat(struct common *common, int argc, char **argv)
{
	common_parse(common, "Shows what the broker holds, and what it has done since its start.", argc, argv);
	struct ipcc_client *client = NULL;
	struct ipcc_stat stat;
	struct ipcc_error err;
	int status = IPCC_OK;
	if (common_connect(common, &client, &err) || ipcc_stat(client, &stat, &err))
		status = report(common, &err);
	else if (common->json)
		print_stat_json(&stat);
	else
		print_stat(&stat);
	ipcc_close(client);
	return status;
}
