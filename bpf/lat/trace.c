/* See trace.h. Times are CLOCK_MONOTONIC, in microseconds. */
#include "bpf/lat/trace.h"

#include "bpf/lat/table.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct trace {
	FILE *chrome, *folded;
	const char *chrome_path, *folded_path;
	struct table named; /* processes and threads whose name is written */
	uint64_t written, last_async;
};

static int open_one(FILE **file, const char *path, struct lat_error *err)
{
	if (path == NULL)
		return LAT_OK;
	*file = fopen(path, "we");
	return *file != NULL ? LAT_OK : lat_fail(err, LAT_FAILED, "%s: %s", lat_shown(path), strerror(errno));
}

int trace_open(struct trace **trace, const char *chrome, const char *folded, struct lat_error *err)
{
	struct trace *t = lat_checked(calloc(1, sizeof(*t)));
	t->chrome_path = chrome;
	t->folded_path = folded;
	int rc = open_one(&t->chrome, chrome, err);
	if (rc == LAT_OK)
		rc = open_one(&t->folded, folded, err);
	if (rc != LAT_OK) {
		trace_close(t, &(struct lat_error){0});
		return rc;
	}
	if (t->chrome != NULL)
		fputs("{\"displayTimeUnit\": \"ns\", \"traceEvents\": [", t->chrome);
	*trace = t;
	return LAT_OK;
}

static json_t *text(const char *bytes)
{
	json_t *string = json_string(bytes);
	return lat_checked(string != NULL ? string : json_string(lat_shown(bytes)));
}

static void put(struct trace *t, json_t *object)
{
	lat_checked(object);
	fputs(t->written++ == 0 ? "\n" : ",\n", t->chrome);
	json_dumpf(object, t->chrome, JSON_COMPACT | JSON_ENSURE_ASCII);
	json_decref(object);
}

static void put_name(struct trace *t, const char *what, uint32_t pid, uint32_t tid, const char *name)
{
	if (table_get(&t->named, pid, tid) != NULL)
		return;
	table_put(&t->named, pid, tid, t);
	put(t, json_pack("{s:s, s:s, s:I, s:I, s:{s:o}}", "ph", "M", "name", what, "pid", (json_int_t)pid, "tid",
			 (json_int_t)(tid != 0 ? tid : pid), "args", "name", text(name)));
}

static json_t *event_of(const struct slice *slice, const char *phase, uint64_t ns)
{
	return lat_checked(json_pack("{s:s, s:o, s:s, s:I, s:I, s:f}", "ph", phase, "name", text(slice->name), "cat",
				     "ipc-cache", "pid", (json_int_t)slice->pid, "tid", (json_int_t)slice->tid, "ts",
				     (double)ns / 1000));
}

void trace_slice(struct trace *t, const struct slice *slice)
{
	if (t->chrome == NULL)
		return;
	put_name(t, "process_name", slice->pid, 0, slice->comm);
	put_name(t, "thread_name", slice->pid, slice->tid, slice->comm);
	bool instant = slice->begin_ns == slice->end_ns;
	json_t *event = event_of(slice, slice->async ? "b" : instant ? "i" : "X", slice->begin_ns);
	if (slice->detail[0] != '\0')
		json_object_set_new(event, "args", lat_checked(json_pack("{s:o}", "detail", text(slice->detail))));
	if (instant && !slice->async)
		json_object_set_new(event, "s", lat_checked(json_string("t")));
	else if (!slice->async)
		json_object_set_new(event, "dur",
				    lat_checked(json_real((double)(slice->end_ns - slice->begin_ns) / 1000)));
	if (!slice->async) {
		put(t, event);
		return;
	}
	json_int_t id = (json_int_t)++t->last_async;
	json_object_set_new(event, "id", lat_checked(json_integer(id)));
	put(t, event);
	event = event_of(slice, "e", slice->end_ns);
	json_object_set_new(event, "id", lat_checked(json_integer(id)));
	put(t, event);
}

/* What a phase took that none of its parts did. */
static uint64_t own_ns(const struct attach *a, enum phase phase)
{
	static const enum phase parents[PHASE_READ_DIRECT] = {
		[PHASE_TOTAL] = PHASE_TOTAL,	[PHASE_CONNECT] = PHASE_TOTAL,	[PHASE_ATTACH] = PHASE_TOTAL,
		[PHASE_REQUEST] = PHASE_ATTACH, [PHASE_BROKER] = PHASE_REQUEST, [PHASE_MANIFEST] = PHASE_ATTACH,
		[PHASE_SOURCES] = PHASE_ATTACH, [PHASE_MAP] = PHASE_TOTAL,	[PHASE_IMPORT] = PHASE_MAP,
		[PHASE_MAPPING] = PHASE_MAP,	[PHASE_ACCESS] = PHASE_MAP};
	uint64_t parts = 0;
	for (unsigned i = 0; i < PHASE_READ_DIRECT; i++)
		parts += i != phase && parents[i] == phase ? a->phase_ns[i] : 0;
	return parts < a->phase_ns[phase] ? a->phase_ns[phase] - parts : 0;
}

static void fold(FILE *to, const struct attach *a)
{
	static const char *const stacks[PHASE_READ_DIRECT] = {
		[PHASE_TOTAL] = "",
		[PHASE_CONNECT] = ";connect",
		[PHASE_ATTACH] = ";attach",
		[PHASE_REQUEST] = ";attach;request",
		[PHASE_BROKER] = ";attach;request;broker",
		[PHASE_MANIFEST] = ";attach;manifest",
		[PHASE_SOURCES] = ";attach;sources",
		[PHASE_MAP] = ";map",
		[PHASE_IMPORT] = ";map;import",
		[PHASE_MAPPING] = ";map;mapping",
		[PHASE_ACCESS] = ";map;access",
	};
	for (unsigned i = 0; i < PHASE_READ_DIRECT; i++) {
		char root[32 + EVENT_TEXT_BYTES];
		uint64_t us = (own_ns(a, i) + 500) / 1000;
		if (us == 0)
			continue;
		snprintf(root, sizeof(root), "%s;%s", a->comm, a->name[0] != '\0' ? a->name : a->wanted);
		/* One blank parts the stack from its number. */
		for (char *c = root; *c != '\0'; c++)
			*c = *c == ' ' || *c == '\n' ? '_' : *c;
		fprintf(to, "%s%s %" PRIu64 "\n", lat_shown(root), stacks[i], us);
	}
}

void trace_attach(struct trace *t, const struct attach *a)
{
	for (uint32_t i = 0; i < a->slice_count; i++)
		trace_slice(t, &a->slices[i]);
	if (a->slices_left_out > 0 && t->chrome != NULL) {
		struct slice note = {.pid = a->pid, .tid = a->tid, .begin_ns = a->begin_ns, .end_ns = a->begin_ns};
		memcpy(note.comm, a->comm, sizeof(note.comm));
		snprintf(note.name, sizeof(note.name), "%u events left out", a->slices_left_out);
		trace_slice(t, &note);
	}
	if (t->folded != NULL)
		fold(t->folded, a);
}

static int close_one(FILE *file, const char *path, struct lat_error *err)
{
	if (file == NULL)
		return LAT_OK;
	bool failed = ferror(file) != 0;
	if (fclose(file) == 0 && !failed)
		return LAT_OK;
	return lat_fail(err, LAT_FAILED, "%s: cannot be written: %s", lat_shown(path), strerror(errno));
}

static bool always(const void *value)
{
	(void)value;
	return true;
}

int trace_close(struct trace *t, struct lat_error *err)
{
	if (t == NULL)
		return LAT_OK;
	if (t->chrome != NULL)
		fputs("\n]}\n", t->chrome);
	int rc = close_one(t->chrome, t->chrome_path, err);
	int other = close_one(t->folded, t->folded_path, err);
	table_sweep(&t->named, always, NULL);
	free(t);
	return rc != LAT_OK ? rc : other;
}
