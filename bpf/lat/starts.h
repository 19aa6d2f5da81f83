/*
 * From single events to starts: attaches (connect, attach, map of one client) and loads (of one process).
 *
 * A thread's own events come in their order, and what the broker does for a request comes between its sending and its
 * reply; nothing else is relied on. An attach that began before the tool did is not counted.
 */
#ifndef LAT_STARTS_H
#define LAT_STARTS_H

#include "bpf/lat/events.h"
#include "bpf/lat/phases.h"

#include <stdbool.h>

/* A piece of an attach's time, for the trace. */
struct slice {
	uint32_t pid, tid;
	bool async;		   /* others of the same thread may overlap it */
	uint64_t begin_ns, end_ns; /* equal: an instant */
	char comm[16];
	char name[48];
	char detail[112];
};

struct attach {
	uint64_t client; /* with pid: the key */
	uint32_t pid, tid;
	char comm[16];
	uint64_t model;
	uint32_t broker_pid;
	uint64_t connection; /* 0: not known */
	bool connecting, attaching, mapping;
	uint64_t begin_ns, step_ns, request_ns;
	uint64_t phase_ns[PHASE_NAMED];
	bool phase_seen[PHASE_NAMED];
	int code;
	char wanted[EVENT_TEXT_BYTES], name[EVENT_TEXT_BYTES];
	char field[EVENT_TEXT_BYTES], expected[EVENT_TEXT_BYTES], got[EVENT_TEXT_BYTES];
	uint64_t bytes, segments, tensors;
	uint64_t parked; /* times that its request waited in the broker */
	uint64_t faults, blocks, block_bytes, block_ns, calls, call_ns;
	struct slice *slices;
	uint32_t slice_count, slices_left_out;
};

struct load {
	uint32_t pid;
	char comm[16];
	char root[EVENT_TEXT_BYTES], name[EVENT_TEXT_BYTES];
	uint64_t begin_ns, end_ns;
	uint64_t bytes, segments, tensors;
	uint64_t path_bytes[3], reads[3], read_ns[3];
	uint64_t hashed_bytes, uploads, upload_bytes;
	uint64_t blocks, block_bytes, block_ns;
};

struct mismatch {
	uint32_t pid;
	char field[EVENT_TEXT_BYTES], expected[EVENT_TEXT_BYTES], got[EVENT_TEXT_BYTES];
};

/* What somebody wants to hear of; `context` is options->context. */
struct starts_options {
	const char *model; /* NULL: all; compared with the name, what was asked for, and a load's path */
	bool slices;	   /* keep them */
	void *context;
	void (*attached)(void *context, const struct attach *attach); /* mapped, or failed; its slices go after this */
	void (*loaded)(void *context, const struct load *load);
	void (*mismatched)(void *context, const struct mismatch *mismatch);
	/* Slices that belong to no attach, as they end: a loader's, an engine's phases. */
	void (*sliced)(void *context, const struct slice *slice);
};

struct starts;
struct starts *starts_new(const struct starts_options *options, struct phases *phases);
void starts_free(struct starts *starts);
void starts_event(struct starts *starts, const struct event *event, const char (*texts)[EVENT_TEXT_BYTES]);

struct starts_counts {
	uint64_t attaches, failed, loads, mismatches, refused_connections;
	uint64_t unfinished; /* attaches whose process ended, or that are still under way */
};
void starts_count(struct starts *starts, struct starts_counts *counts);

#endif
