/* The broker's events: which connection is whose, and what it did for an attach. */
#include "bpf/lat/state.h"

#include "bpf/lat/lat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void authenticated(struct starts *s, const struct event *e)
{
	uint32_t pid = (uint32_t)e->args[1];
	struct connection *c = table_get(&s->connections, e->pid, e->args[0]);
	if (c == NULL) {
		c = lat_checked(calloc(1, sizeof(*c)));
		table_put(&s->connections, e->pid, e->args[0], c);
	}
	*c = (struct connection){.broker_pid = e->pid, .pid = pid, .number = e->args[0]};
	struct attach *a = table_get(&s->connecting, 0, pid);
	if (a == NULL || a->connection != 0)
		return;
	c->client = a->client;
	a->broker_pid = e->pid;
	a->connection = c->number;
}

/* The attach that a connection works for, if it is known. */
static struct attach *attach_of(struct starts *s, const struct connection *c)
{
	struct attach *a = c->client != 0 ? table_get(&s->attaches, c->pid, c->client) : NULL;
	return a != NULL && a->broker_pid == c->broker_pid && a->connection == c->number ? a : NULL;
}

static void replied(struct starts *s, struct connection *c, struct attach *a, const struct event *e)
{
	if (a != NULL && a->attaching && c->request_ns != 0 && e->args[2] == TYPE_ATTACH)
		attach_phase(s, a, e, PHASE_BROKER, c->request_ns);
	c->request_ns = 0;
}

void broker_event(struct starts *s, const struct event *e, event_texts texts)
{
	if (e->kind == EVENT_connection__authenticated)
		authenticated(s, e);
	struct connection *c = table_get(&s->connections, e->pid, e->args[0]);
	struct attach *a = c != NULL ? attach_of(s, c) : NULL;
	struct load *l = c != NULL ? table_get(&s->loads, 0, c->pid) : NULL;
	if (e->kind == EVENT_connection__refused)
		s->counts.refused_connections++;
	else if (e->kind == EVENT_connection__closed)
		free(table_take(&s->connections, e->pid, e->args[0]));
	else if (e->kind == EVENT_key__mismatched)
		starts_mismatch(s, a, c != NULL ? c->pid : 0, texts);
	else if (e->kind == EVENT_request__received && c != NULL)
		c->request_ns = e->time_ns;
	else if (e->kind == EVENT_request__replied && c != NULL)
		replied(s, c, a, e);
	else if (e->kind == EVENT_request__parked && a != NULL)
		a->parked++;
	else if (e->kind == EVENT_publish__begun && l != NULL)
		copy_text(l->name, texts[0]);
}
