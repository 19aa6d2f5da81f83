/* The client library's events: one attach after another for each client. */
#include "bpf/lat/state.h"

#include "bpf/lat/lat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct attach *client_attach(struct starts *s, const struct event *e, uint64_t client)
{
	struct attach *a = table_get(&s->attaches, e->pid, client);
	if (a == NULL) {
		a = lat_checked(calloc(1, sizeof(*a)));
		table_put(&s->attaches, e->pid, client, a);
	}
	return a;
}

/* Everything of an earlier attach goes but who it is and the connection. */
static void restart(struct attach *a, const struct event *e, uint64_t client)
{
	struct slice *slices = a->slices;
	*a = (struct attach){.client = client,
			     .pid = e->pid,
			     .tid = e->tid,
			     .broker_pid = a->broker_pid,
			     .connection = a->connection,
			     .begin_ns = e->time_ns,
			     .slices = slices};
	memcpy(a->comm, e->comm, sizeof(a->comm));
	/* realloc starts from nothing again, see attach_slice. */
	free(slices);
	a->slices = NULL;
}

static bool is_wanted(const struct starts *s, const struct attach *a)
{
	const char *model = s->options.model;
	return model == NULL || strcmp(model, a->name) == 0 || strcmp(model, a->wanted) == 0;
}

/* It is over, well or not. */
static void conclude(struct starts *s, struct attach *a, int code)
{
	a->code = code;
	if (!is_wanted(s, a))
		return;
	a->phase_ns[PHASE_TOTAL] = a->phase_ns[PHASE_CONNECT] + a->phase_ns[PHASE_ATTACH] + a->phase_ns[PHASE_MAP];
	a->phase_seen[PHASE_TOTAL] = true;
	s->counts.attaches += code == 0;
	s->counts.failed += code != 0;
	for (unsigned i = 0; i < PHASE_READ_DIRECT && code == 0; i++)
		if (a->phase_seen[i])
			phases_add(s->phases, i, a->phase_ns[i]);
	s->options.attached(s->options.context, a);
}

static void connect_started(struct starts *s, const struct event *e)
{
	struct attach *a = client_attach(s, e, e->args[0]);
	restart(a, e, e->args[0]);
	a->connection = 0;
	a->connecting = true;
	table_put(&s->threads, 0, e->tid, a);
	table_put(&s->active, 0, e->pid, a);
	/* Which of several the broker accepts first is not known: then none is named. */
	struct attach *other = table_get(&s->connecting, 0, e->pid);
	table_put(&s->connecting, 0, e->pid, other != NULL && other->connecting && other != a ? NULL : a);
}

static void connect_finished(struct starts *s, struct attach *a, const struct event *e)
{
	if (!a->connecting)
		return;
	a->connecting = false;
	table_take(&s->connecting, 0, e->pid);
	attach_phase(s, a, e, PHASE_CONNECT, a->begin_ns);
	if ((int)e->args[1] != 0)
		conclude(s, a, (int)e->args[1]);
}

static void attach_started(struct starts *s, const struct event *e, event_texts texts)
{
	struct attach *a = client_attach(s, e, e->args[0]);
	if (!a->phase_seen[PHASE_CONNECT] || a->phase_seen[PHASE_ATTACH])
		restart(a, e, e->args[0]);
	a->attaching = true;
	a->begin_ns = a->step_ns = e->time_ns;
	copy_text(a->wanted, texts[0]);
	table_put(&s->threads, 0, e->tid, a);
	table_put(&s->active, 0, e->pid, a);
}

static void attach_finished(struct starts *s, struct attach *a, const struct event *e, event_texts texts)
{
	if (!a->attaching)
		return;
	a->attaching = false;
	a->model = e->args[2];
	copy_text(a->name, texts[0]);
	attach_phase(s, a, e, PHASE_ATTACH, a->begin_ns);
	if ((int)e->args[1] != 0)
		conclude(s, a, (int)e->args[1]);
	else
		table_put(&s->models, e->pid, a->model, a);
}

/* A step of the attach ended: from the end of the one before it until now. */
static void step(const struct starts *s, struct attach *a, const struct event *e, enum phase phase)
{
	attach_phase(s, a, e, phase, a->step_ns);
	a->step_ns = e->time_ns;
}

static void map_started(struct starts *s, const struct event *e)
{
	struct attach *a = table_get(&s->models, e->pid, e->args[0]);
	if (a == NULL || a->model != e->args[0])
		return;
	a->mapping = true;
	a->begin_ns = a->step_ns = e->time_ns;
	table_put(&s->threads, 0, e->tid, a);
	table_put(&s->active, 0, e->pid, a);
}

static void map_finished(struct starts *s, const struct event *e)
{
	struct attach *a = table_get(&s->models, e->pid, e->args[0]);
	if (a == NULL || !a->mapping)
		return;
	a->mapping = false;
	a->bytes = e->args[2];
	a->segments = e->args[3];
	a->tensors = e->args[4];
	attach_phase(s, a, e, PHASE_MAP, a->begin_ns);
	conclude(s, a, (int)e->args[1]);
}

static void phase_finished(struct starts *s, const struct event *e, event_texts texts)
{
	const struct attach *a = table_get(&s->models, e->pid, e->args[0]);
	struct slice slice = {.pid = e->pid, .tid = e->tid, .begin_ns = e->args[2], .end_ns = e->args[3]};
	if (slice.end_ns < slice.begin_ns || (s->options.model != NULL && (a == NULL || !is_wanted(s, a))))
		return;
	phases_add_named(s->phases, texts[0], slice.end_ns - slice.begin_ns);
	memcpy(slice.comm, e->comm, sizeof(slice.comm));
	snprintf(slice.name, sizeof(slice.name), "%.47s", texts[0]);
	s->options.sliced(s->options.context, &slice);
}

/* What a thread does inside of an attach that is under way. */
static void thread_event(struct starts *s, const struct event *e)
{
	struct attach *a = table_get(&s->threads, 0, e->tid);
	if (a == NULL || a->pid != e->pid || !a->mapping)
		return;
	step(s, a, e,
	     e->kind == EVENT_segment__imported ? PHASE_IMPORT
	     : e->kind == EVENT_segment__mapped ? PHASE_MAPPING
						: PHASE_ACCESS);
}

static void attach_event(struct starts *s, struct attach *a, const struct event *e, event_texts texts)
{
	if (e->kind == EVENT_connect__finished)
		connect_finished(s, a, e);
	else if (e->kind == EVENT_reply__received && a->attaching && e->args[2] == TYPE_ATTACH)
		step(s, a, e, PHASE_REQUEST);
	else if (e->kind == EVENT_manifest__verified && a->attaching)
		step(s, a, e, PHASE_MANIFEST);
	else if (e->kind == EVENT_sources__compared && a->attaching)
		step(s, a, e, PHASE_SOURCES);
	else if (e->kind == EVENT_attach__finished)
		attach_finished(s, a, e, texts);
}

void client_event(struct starts *s, const struct event *e, event_texts texts)
{
	struct attach *a = table_get(&s->attaches, e->pid, e->args[0]);
	if (e->kind == EVENT_sources__compared && e->args[1] == CODE_MISMATCH && texts[0][0] != '\0')
		starts_mismatch(s, a, e->pid, texts);
	if (e->kind == EVENT_reply__received && e->args[2] == TYPE_COMMIT)
		loader_event(s, e, texts);
	if (e->kind == EVENT_connect__started)
		connect_started(s, e);
	else if (e->kind == EVENT_attach__started)
		attach_started(s, e, texts);
	else if (e->kind == EVENT_map__started)
		map_started(s, e);
	else if (e->kind == EVENT_map__finished)
		map_finished(s, e);
	else if (e->kind == EVENT_phase__finished)
		phase_finished(s, e, texts);
	else if (e->kind >= EVENT_segment__imported && e->kind <= EVENT_access__set)
		thread_event(s, e);
	else if (a != NULL)
		attach_event(s, a, e, texts);
}
