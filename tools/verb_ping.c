/* ipc-cache ping: one round trip to the broker, timed. */
#include "broker/client/ipc_cache.h"
#include "tools/clock.h"
#include "tools/output.h"
#include "tools/verb.h"

int verb_ping(struct common *common, int argc, char **argv)
{
	common_parse(common, "Times one round trip to the broker, the connection being open.", argc, argv);
	struct ipcc_client *client = NULL;
	struct ipcc_error err;
	int status = IPCC_OK;
	uint64_t start_ns = 0;
	if (common_connect(common, &client, &err) || (start_ns = clock_ns(), ipcc_ping(client, &err))) {
		status = report(common, &err);
	} else {
		double round_trip_us = (double)(clock_ns() - start_ns) / 1000;
		if (common->json)
			print_json(json_pack("{s:f}", "round_trip_us", round_trip_us));
		else
			fact("round trip", "%.1f us", round_trip_us);
	}
	ipcc_close(client);
	return status;
}
