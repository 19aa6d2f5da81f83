/*
 * The options that select a part of a checkpoint, and what they come to: a child of the parser of `load`.
 */
#ifndef IPCC_TOOLS_SELECT_H
#define IPCC_TOOLS_SELECT_H

#include "loader/selection.h"

#include <argp.h>

/* --include, --exclude, --rows, --columns, --rank; the input is a struct selection, zeroed before. */
extern const struct argp select_argp;

#endif
