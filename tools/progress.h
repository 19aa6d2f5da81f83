/* A progress bar on standard error if that is a terminal; nothing otherwise. */
#ifndef IPCC_TOOLS_PROGRESS_H
#define IPCC_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
	bool terminal;
	bool shown;
	uint64_t start_ns;
	uint64_t shown_ns;
};

void progress_init(struct progress *p);
/* Has the form of fill_options.progress; the context is the struct progress. */
void progress_show(void *context, uint64_t done_bytes, uint64_t total_bytes);
/* Takes the bar away. */
void progress_fini(struct progress *p);

#endif
