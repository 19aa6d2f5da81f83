/* See load_options.h. */
#include "tools/load_options.h"

#include "tools/select.h"

#include <grp.h>
#include <string.h>

enum {
	OPTION_NAME = 1,
	OPTION_DEVICE,
	OPTION_REPLACE,
	OPTION_WAIT,
	OPTION_VISIBLE,
	OPTION_THREADS,
	OPTION_IO,
	OPTION_PLAN,
	OPTION_KEEPER
};

static const struct argp_option options[] = {
	{"name", OPTION_NAME, "NAME", 0,
	 "What to call it (default: the name of the folder, or of the file without its suffix)", 0},
	{"device", OPTION_DEVICE, "DEVICE", 0,
	 "Where it shall live: host (default), cuda:0, a GPU's UUID, or auto (the GPU with the most free memory, host "
	 "if there is none)",
	 0},
	{"replace", OPTION_REPLACE, NULL, 0, "Load it even if it is resident; the old one goes with its last lease", 0},
	{"wait", OPTION_WAIT, "MS", 0, "While somebody else loads the same model: wait so long (or 'forever') for it",
	 0},
	{"visible", OPTION_VISIBLE, "WHOM", 0, "Who may attach: owner (default), group:NAME, all", 0},
	{"threads", OPTION_THREADS, "N", 0, "How many threads read (default: one per processor, at most 8)", 0},
	{"io", OPTION_IO, "HOW", 0,
	 "How files are read: direct (past the page cache), buffered, mmap, or auto (default: from the page cache what "
	 "is there; the rest as is faster, by measurement)",
	 0},
	{"keeper", OPTION_KEEPER, NULL, 0,
	 "Hold the memory in this process, and stay until the model is evicted: for a GPU whose memory cannot be "
	 "shared as file descriptors. The model ends with this process",
	 0},
	{"plan", OPTION_PLAN, NULL, 0, "Load nothing; show what would be read, and where it would go", 0},
	{0},
};

static void parse_visible(struct argp_state *state, const char *text, struct ipcc_publish_options *publish)
{
	if (strcmp(text, "owner") == 0) {
		publish->visibility = IPCC_VISIBLE_OWNER;
	} else if (strcmp(text, "all") == 0) {
		publish->visibility = IPCC_VISIBLE_ALL;
	} else if (strncmp(text, "group:", 6) == 0) {
		const struct group *group = getgrnam(text + 6);
		publish->visibility = IPCC_VISIBLE_GROUP;
		publish->visible_gid = group != NULL ? group->gr_gid
						     : (gid_t)option_number(state, "--visible: no such group", text + 6,
									    0, UINT32_MAX - 1);
	} else {
		argp_error(state, "--visible: '%s' is none of owner, group:NAME, all", text);
	}
}

static enum fill_io parse_io(struct argp_state *state, const char *text)
{
	static const char *const names[] = {
		[FILL_AUTO] = "auto", [FILL_DIRECT] = "direct", [FILL_BUFFERED] = "buffered", [FILL_MMAP] = "mmap"};
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(text, names[i]) == 0)
			return i;
	argp_error(state, "--io: '%s' is none of direct, buffered, mmap, auto", text);
	return FILL_AUTO;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct load_options *o = state->input;
	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &o->selection;
		return 0;
	case OPTION_IO:
		o->io = parse_io(state, arg);
		return 0;
	case OPTION_KEEPER:
		o->publish.keep = true;
		return 0;
	case OPTION_PLAN:
		o->plan = true;
		return 0;
	case OPTION_NAME:
		o->publish.name = arg;
		o->named = true;
		return 0;
	case OPTION_DEVICE:
		o->publish.device = arg;
		return 0;
	case OPTION_REPLACE:
		o->publish.replace = true;
		return 0;
	case OPTION_WAIT:
		o->publish.wait_ms = option_wait(state, arg);
		return 0;
	case OPTION_VISIBLE:
		parse_visible(state, arg, &o->publish);
		o->shown = true;
		return 0;
	case OPTION_THREADS:
		o->threads = (unsigned)option_number(state, "--threads", arg, 1, FILL_MAX_THREADS);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_child children[] = {{&select_argp, 0, "A part of the model:", 5}, {0}};

static const struct argp argp = {
	.options = options,
	.parser = parse,
	.args_doc = "PATH",
	.doc = "Loads a safetensors file, or a model folder with one or with model.safetensors.index.json, and makes "
	       "it "
	       "resident: it stays when this command ends (unless --keeper is given). A model that is resident already "
	       "is compared with the files "
	       "and left as it is.",
	.children = children,
};

void load_options_parse(struct load_options *parsed, struct common *common, int argc, char **argv)
{
	*parsed = (struct load_options){.common = common, .publish.device = "host"};
	parse_arguments(&argp, parsed, &(struct argument){&parsed->path, "which file or folder?"}, common, 0, argc,
			argv);
}
