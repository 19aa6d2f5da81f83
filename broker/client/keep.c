/*
 * Keeping: the memory of a committed model stays this process's, and the model ends with the connection; see ipc_cache.h.
 *
 * Invariant: the memory is freed only when the broker has said that nobody has it, or knows that it is going.
 */
#include "broker/client/publish.h"

#include "manifest/fail.h"

EXPORT int ipcc_publish_keep(struct ipcc_publish *publish, struct ipcc_error *err)
{
	struct ipcc_client *client = publish->client;
	if (!publish->keep || !publish->committed || client == NULL)
		return fail(err, IPCC_USAGE, "nothing to keep: publish with `keep`, and commit first");
	for (;;) {
		call_poll(client);
		if (client->released)
			return IPCC_OK;
		if (client->broken)
			return fail(err, IPCC_NO_BROKER, "the broker ended the connection, and with it the model");
		int rc = call_wait(client, err);
		if (rc != IPCC_OK)
			return rc;
	}
}

void keep_end(struct ipcc_publish *publish)
{
	struct ipcc_client *client = publish->client;
	if (!client->released && !client->broken)
		client_leave(client);
	client->publishing = NULL;
}
