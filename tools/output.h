/*
 * What the command prints: facts for people, JSON for programs, errors for both. Whatever is meant for people passes
 * escape() (text.h); JSON documents carry names exactly, in ASCII.
 *
 * Standard output that cannot be written (a full disk, a closed pipe) ends the command with status 1: output_init.
 */
#ifndef IPCC_TOOLS_OUTPUT_H
#define IPCC_TOOLS_OUTPUT_H

#include "manifest/error.h"
#include "tools/options.h"
#include "tools/text.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

/* Before anything is opened or printed. */
void output_init(void);
/* Ends the command if standard output could not be written so far. */
void output_flush(void);

/* Prints `err` to stderr as "ipc-cache VERB: message", and with --json as a document too. Returns the exit status. */
int report(const struct common *common, const struct ipcc_error *err);
/* The same when a document has been printed already: stderr only. */
int report_text(const struct common *common, const struct ipcc_error *err);

/* For people: "label   text". An empty label continues the line above. The text is escaped here. */
void fact(const char *label, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints and frees the document; NULL (no memory) ends the command. */
void print_json(json_t *document);
/* Never NULL for a string that is no UTF-8: '?' takes the place of what is invalid. */
json_t *json_text(const char *text);
/* A number, or beyond 2^63 - 1, which JSON readers lose, a string. */
json_t *json_number(uint64_t value);
json_t *json_hex(const void *bytes, size_t length);

#endif
