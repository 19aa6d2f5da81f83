/* See starts.h: the dispatcher, and what the parts share. */
#include "bpf/lat/state.h"

#include "bpf/lat/lat.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More slices than that of one attach are counted, not kept: page faults of a huge read may be millions. */
#define MOST_SLICES 100000

struct starts *starts_new(const struct starts_options *options, struct phases *phases)
{
	struct starts *s = lat_checked(calloc(1, sizeof(*s)));
	s->options = *options;
	s->phases = phases;
	return s;
}

static bool always(const void *value)
{
	(void)value;
	return true;
}

static void attach_free(void *value)
{
	struct attach *a = value;
	free(a->slices);
	free(a);
}

void starts_free(struct starts *s)
{
	if (s == NULL)
		return;
	table_sweep(&s->models, always, NULL);
	table_sweep(&s->threads, always, NULL);
	table_sweep(&s->active, always, NULL);
	table_sweep(&s->connecting, always, NULL);
	table_sweep(&s->attaches, always, attach_free);
	table_sweep(&s->connections, always, free);
	table_sweep(&s->loads, always, free);
	table_sweep(&s->reads, always, free);
	table_sweep(&s->uploads, always, free);
	free(s);
}

bool process_is_gone(uint32_t pid)
{
	return kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

/* NULL: the process connects in several threads at once, and none of them is named. */
static bool attach_is_over(const void *value)
{
	return value == NULL || process_is_gone(((const struct attach *)value)->pid);
}

static bool connection_is_over(const void *value)
{
	return process_is_gone(((const struct connection *)value)->pid);
}

static bool load_is_over(const void *value)
{
	return process_is_gone(((const struct load *)value)->pid);
}

static bool pending_is_over(const void *value)
{
	return process_is_gone(((const struct pending *)value)->pid);
}

/* Tables are rid of what belongs to processes that ended, when they have grown. Those that name an attach go before it. */
static void sweep(struct starts *s)
{
	if (table_is_large(&s->attaches) || table_is_large(&s->models) || table_is_large(&s->threads)) {
		table_sweep(&s->models, attach_is_over, NULL);
		table_sweep(&s->threads, attach_is_over, NULL);
		table_sweep(&s->active, attach_is_over, NULL);
		table_sweep(&s->connecting, attach_is_over, NULL);
		table_sweep(&s->attaches, attach_is_over, attach_free);
	}
	if (table_is_large(&s->connections))
		table_sweep(&s->connections, connection_is_over, free);
	if (table_is_large(&s->loads))
		table_sweep(&s->loads, load_is_over, free);
	if (table_is_large(&s->reads))
		table_sweep(&s->reads, pending_is_over, free);
	if (table_is_large(&s->uploads))
		table_sweep(&s->uploads, pending_is_over, free);
}

void starts_event(struct starts *s, const struct event *e, const char (*texts)[EVENT_TEXT_BYTES])
{
	if (e->kind < EVENT_connect__started)
		broker_event(s, e, texts);
	else if (e->kind < EVENT_plan__made)
		client_event(s, e, texts);
	else if (e->kind < EVENT_PROBES)
		loader_event(s, e, texts);
	else
		kernel_event(s, e);
	if (e->kind == EVENT_connect__started || e->kind == EVENT_plan__made)
		sweep(s);
}

void starts_count(struct starts *s, struct starts_counts *counts)
{
	*counts = s->counts;
}

void copy_text(char to[EVENT_TEXT_BYTES], const char *from)
{
	snprintf(to, EVENT_TEXT_BYTES, "%s", from);
}

void attach_slice(const struct starts *s, struct attach *a, const struct slice *slice)
{
	if (!s->options.slices)
		return;
	if (a->slice_count == MOST_SLICES) {
		a->slices_left_out++;
		return;
	}
	if ((a->slice_count & (a->slice_count - 1)) == 0)
		a->slices = lat_checked(realloc(a->slices, (a->slice_count * 2 + 1) * sizeof(*a->slices)));
	a->slices[a->slice_count++] = *slice;
}

void attach_phase(const struct starts *s, struct attach *a, const struct event *e, enum phase phase, uint64_t begin_ns)
{
	struct slice slice = {.pid = e->pid, .tid = e->tid, .begin_ns = begin_ns, .end_ns = e->time_ns};
	a->phase_ns[phase] += e->time_ns - begin_ns;
	a->phase_seen[phase] = true;
	memcpy(slice.comm, e->comm, sizeof(slice.comm));
	strcpy(slice.name, s->phases->names[phase]);
	if (phase == PHASE_ATTACH || phase == PHASE_REQUEST)
		snprintf(slice.detail, sizeof(slice.detail), "%.100s", a->wanted);
	attach_slice(s, a, &slice);
}

void starts_mismatch(struct starts *s, struct attach *a, uint32_t pid, event_texts texts)
{
	struct mismatch mismatch = {.pid = pid};
	copy_text(mismatch.field, texts[0]);
	copy_text(mismatch.expected, texts[1]);
	copy_text(mismatch.got, texts[2]);
	s->counts.mismatches++;
	if (a != NULL) {
		copy_text(a->field, texts[0]);
		copy_text(a->expected, texts[1]);
		copy_text(a->got, texts[2]);
	}
	s->options.mismatched(s->options.context, &mismatch);
}
