/* Inside the client library only: a publication that is not committed yet, or is kept. */
#ifndef IPCC_CLIENT_PUBLISH_H
#define IPCC_CLIENT_PUBLISH_H

#include "broker/client/client.h"
#include "loader/device/device.h"
#include "manifest/builder.h"

struct publish_segment {
	struct device_segment memory;
	struct hash128 *blocks; /* NULL until hashed */
	struct hash128 hash;
};

struct ipcc_publish {
	struct ipcc_client *client;
	const struct device *device;
	char *device_name;
	bool opened; /* the device */
	struct builder *builder;
	uint32_t segment_count;
	struct publish_segment *segments;
	bool keep;	  /* this process holds the memory */
	bool overwritten; /* segments are not cleared */
	bool committed;
	uint64_t lap_ns; /* when the phase that runs began */
	uint64_t phase_ns[IPCC_PHASES];
};

/* keep.c: nobody finds the model any more from here on; its memory may be freed. */
void keep_end(struct ipcc_publish *publish);
/* Something that is a phase begins. */
void publish_lap(struct ipcc_publish *publish);
/* It ends, and the next one begins. */
void publish_lap_end(struct ipcc_publish *publish, enum ipcc_phase phase);

#endif
