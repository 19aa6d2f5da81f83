/*
 * What the BPF programs tell ipc-cache-lat: the kinds of events and their records in the ring buffer. Included on both
 * sides, so it uses nothing but the kernel's plain types.
 *
 * PROBES lists the catalogue (bpf/probes.h): name, number of arguments, which of them are strings (a mask), what it begins
 * or ends for the kernel's events.
 */
#ifndef LAT_EVENTS_H
#define LAT_EVENTS_H

#include <linux/types.h>

#define TRACK_NONE    0
#define TRACK_BEGIN   1 /* this thread attaches: its page faults, system calls and reads are of interest */
#define TRACK_END     2
#define TRACK_PROCESS 3 /* this process loads: its reads are */

#define PROBES(X)                                                                                                      \
	X(connection__accepted, 1, 0, TRACK_NONE)                                                                      \
	X(connection__authenticated, 3, 0, TRACK_NONE)                                                                 \
	X(connection__refused, 5, 0x10, TRACK_NONE)                                                                    \
	X(connection__closed, 1, 0, TRACK_NONE)                                                                        \
	X(request__received, 3, 0, TRACK_NONE)                                                                         \
	X(request__replied, 4, 0, TRACK_NONE)                                                                          \
	X(request__parked, 4, 0, TRACK_NONE)                                                                           \
	X(key__matched, 5, 0x10, TRACK_NONE)                                                                           \
	X(key__mismatched, 5, 0x1c, TRACK_NONE)                                                                        \
	X(lease__taken, 5, 0x10, TRACK_NONE)                                                                           \
	X(lease__ended, 5, 0x10, TRACK_NONE)                                                                           \
	X(publish__begun, 5, 0x10, TRACK_NONE)                                                                         \
	X(publish__committed, 5, 0x10, TRACK_NONE)                                                                     \
	X(model__evicted, 5, 0x10, TRACK_NONE)                                                                         \
	X(connect__started, 1, 0, TRACK_BEGIN)                                                                         \
	X(connect__finished, 2, 0, TRACK_END)                                                                          \
	X(attach__started, 2, 0x2, TRACK_BEGIN)                                                                        \
	X(reply__received, 4, 0, TRACK_NONE)                                                                           \
	X(manifest__verified, 3, 0, TRACK_NONE)                                                                        \
	X(sources__compared, 5, 0x1c, TRACK_NONE)                                                                      \
	X(attach__finished, 4, 0x8, TRACK_END)                                                                         \
	X(map__started, 2, 0, TRACK_BEGIN)                                                                             \
	X(segment__imported, 2, 0, TRACK_NONE)                                                                         \
	X(segment__mapped, 2, 0, TRACK_NONE)                                                                           \
	X(access__set, 2, 0, TRACK_NONE)                                                                               \
	X(map__finished, 5, 0, TRACK_END)                                                                              \
	X(phase__finished, 4, 0x2, TRACK_NONE)                                                                         \
	X(plan__made, 5, 0x1, TRACK_PROCESS)                                                                           \
	X(read__submitted, 5, 0, TRACK_NONE)                                                                           \
	X(read__completed, 3, 0, TRACK_NONE)                                                                           \
	X(unit__hashed, 3, 0, TRACK_NONE)                                                                              \
	X(upload__submitted, 3, 0, TRACK_NONE)                                                                         \
	X(upload__completed, 2, 0, TRACK_NONE)                                                                         \
	X(segment__full, 2, 0, TRACK_NONE)

#define PROBE_KIND(name, arguments, texts, track) EVENT_##name,
enum event_kind {
	PROBES(PROBE_KIND) EVENT_PROBES,
	/* The kernel's; args[0] is the time of the beginning where there is one. */
	EVENT_FAULT = EVENT_PROBES, /* address, error code */
	EVENT_SYSCALL,		    /* began, number, fd, command, device, result */
	EVENT_BLOCK,		    /* began, device, sector, bytes */
	EVENT_URING,		    /* began, opcode, result */
	EVENT_KINDS,
};
#undef PROBE_KIND

#define EVENT_ARGS	 6
#define EVENT_TEXTS	 3
#define EVENT_TEXT_BYTES 128

struct event {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u32 pid, tid;
	__u32 kind;
	__u32 text_count; /* record_text follows when it is not 0 */
	__u64 args[EVENT_ARGS];
	char comm[16];
};

struct event_with_text {
	struct event event;
	/* The string arguments in their order; "" for NULL, and for what could not be read. */
	char texts[EVENT_TEXTS][EVENT_TEXT_BYTES];
};

/* The cookie of a probe. */
#define COOKIE(kind, arguments, texts, track)                                                                          \
	((__u64)(kind) | (__u64)(arguments) << 8 | (__u64)(texts) << 16 | (__u64)(track) << 24)

#endif
