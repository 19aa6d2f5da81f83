/* Inside starts*.c only: the tables that events are looked up in. */
#ifndef LAT_STATE_H
#define LAT_STATE_H

#include "bpf/lat/starts.h"
#include "bpf/lat/table.h"

/* The broker's message types that matter here; ipc-cache-protocol(7). */
#define TYPE_COMMIT   5
#define TYPE_ATTACH   6
#define CODE_MISMATCH 4

struct connection {
	uint32_t broker_pid, pid;
	uint64_t number;
	uint64_t client; /* 0: not known which of the process's */
	uint64_t request_ns;
};

struct pending {
	uint32_t pid, path;
	uint64_t begin_ns, bytes;
};

struct starts {
	struct starts_options options;
	struct phases *phases;
	struct starts_counts counts;
	struct table attaches;	  /* pid, client */
	struct table models;	  /* pid, model -> attach */
	struct table threads;	  /* 0, tid -> attach */
	struct table active;	  /* 0, pid -> the attach that began last */
	struct table connecting;  /* 0, pid -> attach; of several at once, none is known */
	struct table connections; /* broker's pid, number */
	struct table loads;	  /* 0, pid */
	struct table reads;	  /* pid, id */
	struct table uploads;
};

typedef const char (*event_texts)[EVENT_TEXT_BYTES];

void client_event(struct starts *s, const struct event *e, event_texts texts);
void broker_event(struct starts *s, const struct event *e, event_texts texts);
void loader_event(struct starts *s, const struct event *e, event_texts texts);
void kernel_event(struct starts *s, const struct event *e);

void copy_text(char to[EVENT_TEXT_BYTES], const char *from);
/* Keeps a slice with the attach; `detail` as of printf. */
void attach_slice(const struct starts *s, struct attach *a, const struct slice *slice);
void attach_phase(const struct starts *s, struct attach *a, const struct event *e, enum phase phase, uint64_t begin_ns);
void starts_mismatch(struct starts *s, struct attach *a, uint32_t pid, event_texts texts);
bool process_is_gone(uint32_t pid);

#endif
