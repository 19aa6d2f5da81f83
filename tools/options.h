/* Arguments: a verb's own options beside those that every verb has, and the checks that several verbs share. */
#ifndef IPCC_TOOLS_OPTIONS_H
#define IPCC_TOOLS_OPTIONS_H

#include "manifest/error.h"

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

struct ipcc_client;

/* For the --help of verbs that take one. */
#define MODEL_DOC "MODEL is a path, the name given at the load, or the first 4 or more digits of its key."

/* --dir, --timeout and --json; they may stand before the verb or after it. */
struct common {
	const char *verb; /* for messages */
	const char *dir;  /* NULL: where the library looks */
	int timeout_ms;	  /* 0: the library's default */
	bool json;
};

/* A verb's one argument, which it needs. A missing or a second one is a usage error. */
struct argument {
	const char **value;
	const char *question; /* when it is missing: "which model?" */
};

/* Parses the arguments of a verb: `verb` has its own options, help and parser, which fills in `input`; `argument` and the
 * options in `common` come with it. `argument` is NULL for a verb whose parser takes what is no option itself. Ends the
 * process on every error. `flags` are argp_parse's. */
void parse_arguments(const struct argp *verb, void *input, const struct argument *argument, struct common *common,
		     unsigned flags, int argc, char **argv);
/* Parses the arguments of a verb that has no others; `doc` is what --help says. */
void common_parse(struct common *common, const char *doc, int argc, char **argv);

/* Connects as the common options say. */
int common_connect(const struct common *common, struct ipcc_client **client, struct ipcc_error *err);

/* A decimal number between least and most; anything else is a usage error that names `what`. */
uint64_t option_number(const struct argp_state *state, const char *what, const char *text, uint64_t least,
		       uint64_t most);
/* --wait: milliseconds, or 'forever'. */
int option_wait(const struct argp_state *state, const char *text);
/* Stores a verb's only argument; a second one is a usage error. For a parser that takes it itself. */
void option_argument(const struct argp_state *state, const char **argument, char *text);

#endif
