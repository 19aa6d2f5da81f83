/*
 * Traces for other tools: Chrome's trace format, which Perfetto (ui.perfetto.dev) reads, and folded stacks for flame graphs.
 * Both are written as things end, so that memory does not grow.
 */
#ifndef LAT_TRACE_H
#define LAT_TRACE_H

#include "bpf/lat/lat.h"
#include "bpf/lat/starts.h"

struct trace;

/* Either path may be NULL. LAT_FAILED: it cannot be written. */
int trace_open(struct trace **trace, const char *chrome, const char *folded, struct lat_error *err);
void trace_slice(struct trace *trace, const struct slice *slice);
/* An attach with all its slices, and its lines of folded stacks. */
void trace_attach(struct trace *trace, const struct attach *attach);
/* Ends the files; LAT_FAILED if something could not be written. */
int trace_close(struct trace *trace, struct lat_error *err);

#endif
