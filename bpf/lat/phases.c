/* See phases.h. */
#include "bpf/lat/phases.h"

#include <string.h>

static const struct {
	const char *name;
	unsigned depth;
} known[PHASE_NAMED] = {
	[PHASE_TOTAL] = {"total", 0},
	[PHASE_CONNECT] = {"connect", 1},
	[PHASE_ATTACH] = {"attach", 1},
	[PHASE_REQUEST] = {"request", 2},
	[PHASE_BROKER] = {"broker", 3},
	[PHASE_MANIFEST] = {"manifest", 2},
	[PHASE_SOURCES] = {"sources", 2},
	[PHASE_MAP] = {"map", 1},
	[PHASE_IMPORT] = {"import", 2},
	[PHASE_MAPPING] = {"mapping", 2},
	[PHASE_ACCESS] = {"access", 2},
	[PHASE_READ_DIRECT] = {"read direct", 0},
	[PHASE_READ_BUFFERED] = {"read buffered", 0},
	[PHASE_READ_MAPPED] = {"read mapped", 0},
	[PHASE_UPLOAD] = {"upload", 0},
	[PHASE_BLOCK] = {"block request", 0},
	[PHASE_IOCTL] = {"driver ioctl", 0},
	[PHASE_MMAP] = {"mmap", 0},
};

void phases_init(struct phases *phases)
{
	memset(phases, 0, sizeof(*phases));
	for (unsigned i = 0; i < PHASE_NAMED; i++) {
		strcpy(phases->names[i], known[i].name);
		phases->depths[i] = known[i].depth;
	}
	phases->count = PHASE_NAMED;
}

void phases_add(struct phases *phases, enum phase phase, uint64_t ns)
{
	histogram_add(&phases->histograms[phase], ns);
}

void phases_add_named(struct phases *phases, const char *name, uint64_t ns)
{
	unsigned i = PHASE_NAMED;
	while (i < phases->count && strncmp(phases->names[i], name, PHASE_NAME_BYTES - 1) != 0)
		i++;
	if (i == phases->count && phases->count < PHASE_COUNT) {
		strncpy(phases->names[i], i + 1 < PHASE_COUNT ? name : "other", PHASE_NAME_BYTES - 1);
		phases->count++;
	}
	histogram_add(&phases->histograms[i < PHASE_COUNT ? i : PHASE_COUNT - 1], ns);
}
