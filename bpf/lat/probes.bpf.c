/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * One program for all probes: it copies the arguments into the ring buffer. What it needs to know of a probe is in the
 * cookie (events.h).
 *
 * Several may run on one processor at once, so there is no scratch memory for each processor; an event that finds no room is
 * counted under its kind.
 */
#define BPF_USDT_MAX_SPEC_CNT 4096
#define BPF_USDT_MAX_IP_CNT   1
#include "bpf/lat/maps.bpf.h"

#include <bpf/bpf_tracing.h>
#include <bpf/usdt.bpf.h>

const volatile __u32 target_pid = 0; /* of clients and loaders; 0: all */

/* The broker's probes come first in the catalogue: they are wanted whoever is asked for. */
static bool is_wanted(__u32 kind, __u32 pid)
{
	return target_pid == 0 || kind < EVENT_connect__started || pid == target_pid;
}

static void follow(__u32 track)
{
	__u64 ids = bpf_get_current_pid_tgid();
	__u32 one = 1, pid = ids >> 32, tid = (__u32)ids;
	if (track == TRACK_BEGIN)
		bpf_map_update_elem(&tracked, &tid, &one, BPF_ANY);
	else if (track == TRACK_END)
		bpf_map_delete_elem(&tracked, &tid);
	if (track == TRACK_BEGIN || track == TRACK_PROCESS)
		bpf_map_update_elem(&processes, &pid, &one, BPF_ANY);
}

static __always_inline void fill(struct pt_regs *ctx, struct event *event, __u64 ids, __u64 cookie)
{
	event->pid = ids >> 32;
	event->tid = (__u32)ids;
	event->kind = cookie & 0xff;
	event->text_count = 0;
	for (__u32 i = 0; i < EVENT_ARGS; i++) {
		long value = 0;
		if (i < ((cookie >> 8) & 0xff))
			bpf_usdt_arg(ctx, i, &value);
		event->args[i] = value;
	}
	bpf_get_current_comm(event->comm, sizeof(event->comm));
}

/* What it costs to tell lies between the times of a beginning and an end, as it does for the program's own clock. */
static __always_inline void send(struct event *event, __u64 cookie, __u64 entered_ns)
{
	event->time_ns = ((cookie >> 24) & 0xff) == TRACK_BEGIN ? entered_ns : bpf_ktime_get_ns();
	submit(event);
}

static __noinline int tell(struct pt_regs *ctx, __u64 ids, __u64 cookie, __u64 entered_ns)
{
	struct event *e = bpf_ringbuf_reserve(&ring, sizeof(*e), 0);
	if (e == NULL) {
		count_lost(cookie & 0xff);
		return 0;
	}
	fill(ctx, e, ids, cookie);
	send(e, cookie, entered_ns);
	return 0;
}

static __noinline int tell_texts(struct pt_regs *ctx, __u64 ids, __u64 cookie, __u64 entered_ns)
{
	__u32 mask = (cookie >> 16) & 0xff, next = 0;
	struct event_with_text *e = bpf_ringbuf_reserve(&ring, sizeof(*e), 0);
	if (e == NULL) {
		count_lost(cookie & 0xff);
		return 0;
	}
	fill(ctx, &e->event, ids, cookie);
	for (__u32 i = 0; i < EVENT_TEXTS; i++)
		e->texts[i][0] = '\0';
	for (__u32 i = 0; i < EVENT_ARGS; i++) {
		if ((mask & (1u << i)) == 0 || next >= EVENT_TEXTS)
			continue;
		char *to = e->texts[next++];
		if (bpf_probe_read_user_str(to, EVENT_TEXT_BYTES, (const void *)e->event.args[i]) < 0)
			to[0] = '\0';
	}
	e->event.text_count = next;
	send(&e->event, cookie, entered_ns);
	return 0;
}

SEC("usdt")
int on_probe(struct pt_regs *ctx)
{
	__u64 entered_ns = bpf_ktime_get_ns(), cookie = bpf_usdt_cookie(ctx), ids = current_ids();
	if (stopped || !is_wanted(cookie & 0xff, ids >> 32))
		return 0;
	follow((cookie >> 24) & 0xff);
	return ((cookie >> 16) & 0xff) != 0 ? tell_texts(ctx, ids, cookie, entered_ns)
					    : tell(ctx, ids, cookie, entered_ns);
}
