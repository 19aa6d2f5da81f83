/* The phases that are measured, as a tree: each line is a part of the nearest line above that is less deep. */
#ifndef LAT_PHASES_H
#define LAT_PHASES_H

#include "bpf/lat/histogram.h"

enum phase {
	PHASE_TOTAL, /* of an attach: its connect, attach and map together */
	PHASE_CONNECT,
	PHASE_ATTACH,
	PHASE_REQUEST, /* sent, worked on by the broker, reply received */
	PHASE_BROKER,
	PHASE_MANIFEST,
	PHASE_SOURCES,
	PHASE_MAP,
	PHASE_IMPORT,
	PHASE_MAPPING,
	PHASE_ACCESS,
	PHASE_READ_DIRECT, /* the loader's; in the order of its paths */
	PHASE_READ_BUFFERED,
	PHASE_READ_MAPPED,
	PHASE_UPLOAD,
	PHASE_BLOCK, /* the kernel's */
	PHASE_IOCTL,
	PHASE_MMAP,
	PHASE_NAMED, /* an engine's own (phase__finished), named as they come */
	PHASE_COUNT = PHASE_NAMED + 16,
};

#define PHASE_NAME_BYTES 40

struct phases {
	struct histogram histograms[PHASE_COUNT];
	char names[PHASE_COUNT][PHASE_NAME_BYTES];
	unsigned depths[PHASE_COUNT];
	unsigned count;
};

void phases_init(struct phases *phases);
void phases_add(struct phases *phases, enum phase phase, uint64_t ns);
/* An engine's own phase; beyond 16 names all others are "other". */
void phases_add_named(struct phases *phases, const char *name, uint64_t ns);

#endif
