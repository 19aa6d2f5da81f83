/* What `load` can be told on its command line. */
#ifndef IPCC_TOOLS_LOAD_OPTIONS_H
#define IPCC_TOOLS_LOAD_OPTIONS_H

#include "broker/client/ipc_cache.h"
#include "loader/fill.h"
#include "loader/selection.h"
#include "tools/options.h"

struct load_options {
	const struct common *common;
	const char *path;
	unsigned threads; /* 0: the loader's choice */
	enum fill_io io;
	bool plan;
	bool named, shown; /* --name and --visible were given */
	struct selection selection;
	struct ipcc_publish_options publish; /* all but key and segments, which come from the files */
};

/* Fills in all of `parsed`, which points into argv; ends the process on a usage error. */
void load_options_parse(struct load_options *parsed, struct common *common, int argc, char **argv);

#endif
