/* See select.h. */
#include "tools/select.h"

#include "tools/options.h"

#include <stdio.h>

enum { OPTION_INCLUDE = 2000, OPTION_EXCLUDE, OPTION_ROWS, OPTION_COLUMNS, OPTION_RANK };

static const struct argp_option options[] = {
	{"include", OPTION_INCLUDE, "PATTERN", 0,
	 "Load only tensors whose name matches one of these ('*' matches dots too); may be repeated", 5},
	{"exclude", OPTION_EXCLUDE, "PATTERN", 0, "Leave out tensors whose name matches; may be repeated", 5},
	{"rank", OPTION_RANK, "R/N", 0, "Load the share of rank R (from 0) of N", 5},
	{"rows", OPTION_ROWS, "PATTERN", 0, "With --rank: share these tensors along their first dimension", 5},
	{"columns", OPTION_COLUMNS, "PATTERN", 0, "With --rank: share these tensors along their last dimension", 5},
	{0},
};

static void add(struct argp_state *state, struct patterns *patterns, const char *what, const char *text)
{
	if (patterns->count == SELECTION_MAX_PATTERNS)
		argp_error(state, "%s: at most %d patterns", what, SELECTION_MAX_PATTERNS);
	patterns->texts[patterns->count++] = text;
}

static void parse_rank(struct argp_state *state, struct selection *selection, const char *text)
{
	unsigned rank = 0, ranks = 0;
	char end;

	if (text[0] < '0' || text[0] > '9' || sscanf(text, "%9u/%9u%c", &rank, &ranks, &end) != 2 || ranks == 0 ||
	    ranks > SELECTION_MAX_RANKS || rank >= ranks)
		argp_error(state, "--rank: '%s' is not R/N, as 0/2, with R below N", text);
	selection->rank = rank;
	selection->ranks = ranks;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct selection *selection = state->input;

	switch (key) {
	case OPTION_INCLUDE:
		add(state, &selection->include, "--include", arg);
		return 0;
	case OPTION_EXCLUDE:
		add(state, &selection->exclude, "--exclude", arg);
		return 0;
	case OPTION_ROWS:
		add(state, &selection->rows, "--rows", arg);
		return 0;
	case OPTION_COLUMNS:
		add(state, &selection->columns, "--columns", arg);
		return 0;
	case OPTION_RANK:
		parse_rank(state, selection, arg);
		return 0;
	case ARGP_KEY_END:
		if (selection->ranks == 0 && selection->rows.count + selection->columns.count > 0)
			argp_error(state, "--rows and --columns share tensors between ranks: give --rank R/N");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

const struct argp select_argp = {.options = options, .parser = parse};
