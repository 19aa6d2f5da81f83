/* The loader's events, and the kernel's, which belong to an attach or to a load. */
#include "bpf/lat/state.h"

#include "bpf/lat/lat.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

static bool is_wanted(const struct starts *s, const struct load *l)
{
	const char *model = s->options.model;
	return model == NULL || strcmp(model, l->name) == 0 || strcmp(model, l->root) == 0;
}

static struct slice slice_of(const struct event *e, uint64_t begin_ns)
{
	struct slice slice = {.pid = e->pid, .tid = e->tid, .begin_ns = begin_ns, .end_ns = e->time_ns};
	memcpy(slice.comm, e->comm, sizeof(slice.comm));
	return slice;
}

static void planned(struct starts *s, const struct event *e, event_texts texts)
{
	struct load *l = table_get(&s->loads, 0, e->pid);
	if (l == NULL) {
		l = lat_checked(calloc(1, sizeof(*l)));
		table_put(&s->loads, 0, e->pid, l);
	}
	*l = (struct load){.pid = e->pid,
			   .begin_ns = e->time_ns,
			   .bytes = e->args[1],
			   .tensors = e->args[2],
			   .segments = e->args[3]};
	memcpy(l->comm, e->comm, sizeof(l->comm));
	copy_text(l->root, texts[0]);
}

static void begun(struct table *table, const struct event *e, uint32_t path, uint64_t bytes)
{
	struct pending *p = table_get(table, e->pid, e->args[0]);
	if (p == NULL) {
		p = lat_checked(malloc(sizeof(*p)));
		table_put(table, e->pid, e->args[0], p);
	}
	*p = (struct pending){.pid = e->pid, .path = path < 3 ? path : 0, .begin_ns = e->time_ns, .bytes = bytes};
}

static void read_ended(struct starts *s, struct load *l, const struct pending *p, const struct event *e)
{
	struct slice slice = slice_of(e, p->begin_ns);
	int64_t result = (int64_t)e->args[2];
	l->reads[p->path]++;
	l->read_ns[p->path] += e->time_ns - p->begin_ns;
	l->path_bytes[p->path] += result > 0 ? (uint64_t)result : 0;
	phases_add(s->phases, PHASE_READ_DIRECT + p->path, e->time_ns - p->begin_ns);
	slice.async = p->path == 0;
	strcpy(slice.name, s->phases->names[PHASE_READ_DIRECT + p->path]);
	snprintf(slice.detail, sizeof(slice.detail), "%" PRId64 " bytes", result);
	s->options.sliced(s->options.context, &slice);
}

static void upload_ended(struct starts *s, struct load *l, const struct pending *p, const struct event *e)
{
	struct slice slice = slice_of(e, p->begin_ns);
	l->uploads++;
	l->upload_bytes += p->bytes;
	phases_add(s->phases, PHASE_UPLOAD, e->time_ns - p->begin_ns);
	slice.async = true;
	strcpy(slice.name, "upload");
	snprintf(slice.detail, sizeof(slice.detail), "%" PRIu64 " bytes", p->bytes);
	s->options.sliced(s->options.context, &slice);
}

/* The reply to its COMMIT came. */
static void committed(struct starts *s, struct load *l, const struct event *e)
{
	struct slice slice = slice_of(e, l->begin_ns);
	l->end_ns = e->time_ns;
	if (!is_wanted(s, l))
		return;
	s->counts.loads++;
	strcpy(slice.name, "load");
	snprintf(slice.detail, sizeof(slice.detail), "%.100s", l->root);
	s->options.sliced(s->options.context, &slice);
	s->options.loaded(s->options.context, l);
}

void loader_event(struct starts *s, const struct event *e, event_texts texts)
{
	struct load *l = table_get(&s->loads, 0, e->pid);
	struct pending *p = NULL;
	if (e->kind == EVENT_plan__made)
		planned(s, e, texts);
	else if (e->kind == EVENT_read__submitted)
		begun(&s->reads, e, (uint32_t)e->args[1], e->args[4]);
	else if (e->kind == EVENT_upload__submitted)
		begun(&s->uploads, e, 0, e->args[2]);
	else if (e->kind == EVENT_unit__hashed && l != NULL)
		l->hashed_bytes += e->args[2];
	else if (e->kind == EVENT_reply__received && l != NULL && l->end_ns == 0 && e->args[3] == 0)
		committed(s, l, e);
	else if (e->kind == EVENT_read__completed && (p = table_take(&s->reads, e->pid, e->args[0])) != NULL) {
		if (l != NULL && is_wanted(s, l))
			read_ended(s, l, p, e);
	} else if (e->kind == EVENT_upload__completed && (p = table_take(&s->uploads, e->pid, e->args[0])) != NULL) {
		if (l != NULL && is_wanted(s, l))
			upload_ended(s, l, p, e);
	}
	free(p);
}

/* ---- the kernel ---- */

static void describe(const struct event *e, struct slice *slice)
{
	uint32_t device = (uint32_t)(e->kind == EVENT_SYSCALL ? e->args[4] : e->args[1]);
	if (e->kind == EVENT_FAULT) {
		slice->begin_ns = slice->end_ns;
		strcpy(slice->name, "page fault");
		snprintf(slice->detail, sizeof(slice->detail), "%s at %#" PRIx64, e->args[1] & 2 ? "write" : "read",
			 (uint64_t)e->args[0]);
	} else if (e->kind == EVENT_SYSCALL && e->args[1] == SYS_ioctl) {
		strcpy(slice->name, "ioctl");
		snprintf(slice->detail, sizeof(slice->detail), "device %u:%u command %#" PRIx64 " result %" PRId64,
			 device >> 20, device & 0xfffff, (uint64_t)e->args[3], (int64_t)e->args[5]);
	} else if (e->kind == EVENT_SYSCALL) {
		strcpy(slice->name, "mmap");
		snprintf(slice->detail, sizeof(slice->detail), "%" PRIu64 " bytes", (uint64_t)e->args[3]);
	} else if (e->kind == EVENT_BLOCK) {
		slice->async = true;
		strcpy(slice->name, "block request");
		snprintf(slice->detail, sizeof(slice->detail), "device %u:%u sector %" PRIu64 ", %" PRIu64 " bytes",
			 device >> 20, device & 0xfffff, (uint64_t)e->args[2], (uint64_t)e->args[3]);
	} else {
		slice->async = true;
		strcpy(slice->name, "io_uring request");
		snprintf(slice->detail, sizeof(slice->detail), "opcode %" PRIu64 ", result %" PRId64,
			 (uint64_t)e->args[1], (int64_t)e->args[2]);
	}
}

static void attach_kernel(struct starts *s, struct attach *a, const struct event *e, const struct slice *slice)
{
	uint64_t ns = slice->end_ns - slice->begin_ns;
	a->faults += e->kind == EVENT_FAULT;
	if (e->kind == EVENT_SYSCALL) {
		a->calls++;
		a->call_ns += ns;
	} else if (e->kind == EVENT_BLOCK) {
		a->blocks++;
		a->block_bytes += e->args[3];
		a->block_ns += ns;
	}
	attach_slice(s, a, slice);
}

void kernel_event(struct starts *s, const struct event *e)
{
	struct slice slice = slice_of(e, e->args[0]);
	describe(e, &slice);
	uint64_t ns = slice.end_ns - slice.begin_ns;
	if (e->kind == EVENT_BLOCK)
		phases_add(s->phases, PHASE_BLOCK, ns);
	else if (e->kind == EVENT_SYSCALL)
		phases_add(s->phases, e->args[1] == SYS_ioctl ? PHASE_IOCTL : PHASE_MMAP, ns);
	struct attach *a = table_get(&s->threads, 0, e->tid);
	/* Another thread may read for the one that attaches. */
	if (a == NULL && e->kind >= EVENT_BLOCK)
		a = table_get(&s->active, 0, e->pid);
	struct load *l = table_get(&s->loads, 0, e->pid);
	if (a != NULL && a->pid == e->pid && (a->connecting || a->attaching || a->mapping)) {
		attach_kernel(s, a, e, &slice);
		return;
	}
	if (l == NULL || !is_wanted(s, l))
		return;
	if (e->kind == EVENT_BLOCK) {
		l->blocks++;
		l->block_bytes += e->args[3];
		l->block_ns += ns;
	}
	s->options.sliced(s->options.context, &slice);
}
