/* The JSON of a safetensors header, into the arrays of struct safetensors. A part of safetensors.c. */
#ifndef IPCC_LOADER_HEADER_H
#define IPCC_LOADER_HEADER_H

#include "loader/safetensors.h"
#include "manifest/error.h"

#include <stddef.h>

/* Where the JSON begins in every file: behind its length. */
#define HEADER_OFFSET 8

/*
 * Parses `length` bytes of text, NUL-terminated and beginning with '{'. Uses path and data_begin of *st, fills tensors
 * (in the order of the text), metadata, text and shapes. Everything is checked but the layout. On failure *st may be
 * partly filled: safetensors_fini.
 */
int header_parse(struct safetensors *st, const char *text, size_t length, struct ipcc_error *err);

#endif
