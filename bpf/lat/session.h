/*
 * The kernel's part: BPF programs loaded and attached to the probes of all files, events handed on, losses counted.
 *
 * The tool follows files, not processes: a probe is attached to a file for every process that has it open now or later.
 */
#ifndef LAT_SESSION_H
#define LAT_SESSION_H

#include "bpf/lat/events.h"
#include "bpf/lat/files.h"
#include "bpf/lat/lat.h"

struct session;

struct session_options {
	uint32_t pid; /* of engines and loaders; 0: all */
	uint64_t buffer_bytes;
	bool kernel; /* its tracepoints too */
	/* Looks at every event; `texts` has event->text_count of them. False: enough. */
	bool (*handle)(void *context, const struct event *event, const char (*texts)[EVENT_TEXT_BYTES]);
	void *context;
};

/* LAT_NO_PRIVILEGE, LAT_NO_SUPPORT, LAT_NOT_FOUND, LAT_NO_PROBES: each with what to do. */
int session_open(struct session **session, const struct session_options *options, struct lat_files *files,
		 struct lat_error *err);
/* Attaches to what is new among the files. */
void session_follow(struct session *session, struct lat_files *files);
/* Handles what is there, waiting up to `timeout_ms` for it. */
int session_poll(struct session *session, int timeout_ms, struct lat_error *err);
/* Nothing is added any more; handles the rest. */
void session_stop(struct session *session);
void session_close(struct session *session);

unsigned session_sites(const struct session *session);
/* Tracepoints that this kernel does not have or does not show, one sentence; "" when all are there. */
const char *session_missing(const struct session *session);
/* Events of a kind that were handled, and that found no room in the buffer. */
uint64_t session_seen(const struct session *session, unsigned kind);
uint64_t session_lost(const struct session *session, unsigned kind);
/* How often the kernel skipped one of the tracepoint programs because another one ran. */
uint64_t session_skipped(const struct session *session);

extern const char *const event_names[EVENT_KINDS];

#endif
