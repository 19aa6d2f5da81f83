/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The maps that both BPF objects share (one of them brings them, session.c hands them on), and how an event is lost. */
#ifndef LAT_MAPS_BPF_H
#define LAT_MAPS_BPF_H

#include "bpf/lat/core.bpf.h"
#include "bpf/lat/events.h"

#include <bpf/bpf_helpers.h>

#define TRACKED_MAX 16384

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 23); /* the tool sets it */
} ring SEC(".maps");

/* Events of each kind that found no room in the ring. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EVENT_KINDS);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

/* Threads that attach; LRU, since one may end in the middle. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TRACKED_MAX);
	__type(key, __u32);
	__type(value, __u32);
} tracked SEC(".maps");

/* Processes that load, or have attached: any of their threads may read. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TRACKED_MAX);
	__type(key, __u32);
	__type(value, __u32);
} processes SEC(".maps");

/* Set by the tool when it has seen enough: detaching takes the kernel much longer. */
bool stopped = false;

/* The PID namespace in which the tool lives, when it is not the first one. */
const volatile __u64 namespace_device = 0, namespace_inode = 0;

/* Process and thread, as the tool numbers them. */
static inline __u64 current_ids(void)
{
	struct bpf_pidns_info ids = {};
	if (namespace_inode == 0)
		return bpf_get_current_pid_tgid();
	if (bpf_get_ns_current_pid_tgid(namespace_device, namespace_inode, &ids, sizeof(ids)) != 0)
		return 0;
	return (__u64)ids.tgid << 32 | ids.pid;
}

static inline void count_lost(__u32 kind)
{
	__u64 *count = bpf_map_lookup_elem(&lost, &kind);
	if (count != 0)
		__sync_fetch_and_add(count, 1);
}

/* Wakes the tool when a quarter of the ring is full; else it comes by itself. A wake-up for each event would cost the
 * traced programs more than the event. */
static inline void submit(struct event *event)
{
	__u64 full = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA), size = bpf_ringbuf_query(&ring, BPF_RB_RING_SIZE);
	bpf_ringbuf_submit(event, full > size / 4 ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

char LICENSE[] SEC("license") = "GPL";

#endif
