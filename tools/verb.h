/*
 * What a verb of the command is: a function that parses its own arguments, does its work, prints, and returns the exit
 * status. Verbs know nothing of each other; what two of them need stands in a file of its own.
 */
#ifndef IPCC_TOOLS_VERB_H
#define IPCC_TOOLS_VERB_H

#include "tools/options.h"

/* argv[0] is "ipc-cache VERB", so that messages and --help name the verb. */
typedef int verb_function(struct common *common, int argc, char **argv);

verb_function verb_attach;
verb_function verb_copy;
verb_function verb_doctor;
verb_function verb_dump;
verb_function verb_evict;
verb_function verb_inspect;
verb_function verb_load;
verb_function verb_ls;
verb_function verb_ping;
verb_function verb_stat;
verb_function verb_verify;

#endif
