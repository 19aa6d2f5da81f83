/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The kernel's side of an attach or a load, from its tracepoints: page faults, mmap and ioctl of threads that attach, block
 * requests and io_uring requests of those and of processes that load. What is not followed costs a lookup.
 *
 * Each program is loaded only where its tracepoint is (session.c). What begins and ends is told at its end.
 */
#include "bpf/lat/maps.bpf.h"

#include <bpf/bpf_core_read.h>

#define UNDER_WAY_MAX 16384
#define FILE_TYPE     0170000
#define FILE_IS_CHAR  0020000

struct begun {
	__u64 time_ns;
	__u64 ids;
	__u64 values[3];
	char comm[16];
};

struct under_way {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, UNDER_WAY_MAX);
	__type(key, __u64);
	__type(value, struct begun);
};
/* By thread; by device and sector, asked for and issued; by request. */
struct under_way calls SEC(".maps"), bios SEC(".maps"), blocks SEC(".maps"), rings SEC(".maps");

static bool attaches(void)
{
	__u32 tid = (__u32)bpf_get_current_pid_tgid();
	return bpf_map_lookup_elem(&tracked, &tid) != NULL;
}

static bool is_followed(void)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	return bpf_map_lookup_elem(&processes, &pid) != NULL;
}

static struct begun begin(void)
{
	struct begun begun = {.time_ns = bpf_ktime_get_ns(), .ids = current_ids()};
	bpf_get_current_comm(begun.comm, sizeof(begun.comm));
	return begun;
}

/* An event whose other arguments the caller fills in, and submits. */
static struct event *reserve(__u32 kind, __u64 ids, const char comm[16])
{
	struct event *e = stopped ? NULL : bpf_ringbuf_reserve(&ring, sizeof(*e), 0);
	if (e == NULL && !stopped)
		count_lost(kind);
	if (e == NULL)
		return NULL;
	__builtin_memset(e, 0, sizeof(*e));
	e->time_ns = bpf_ktime_get_ns();
	e->pid = ids >> 32;
	e->tid = (__u32)ids;
	e->kind = kind;
	__builtin_memcpy(e->comm, comm, sizeof(e->comm));
	return e;
}

SEC("tracepoint/exceptions/page_fault_user")
int page_fault_user(struct trace_event_raw_exceptions *ctx)
{
	char comm[16];
	if (!attaches())
		return 0;
	bpf_get_current_comm(comm, sizeof(comm));
	struct event *e = reserve(EVENT_FAULT, current_ids(), comm);
	if (e == NULL)
		return 0;
	e->args[0] = ctx->address;
	e->args[1] = ctx->error_code;
	submit(e);
	return 0;
}

/* The device of a character device's fd, or 0. */
static __u32 device_of(__u32 fd)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **fds = BPF_CORE_READ(table, fd), *file = NULL;
	if (fd >= BPF_CORE_READ(table, max_fds) || bpf_probe_read_kernel(&file, sizeof(file), fds + fd) != 0)
		return 0;
	struct inode *inode = BPF_CORE_READ(file, f_inode);
	return (BPF_CORE_READ(inode, i_mode) & FILE_TYPE) == FILE_IS_CHAR ? BPF_CORE_READ(inode, i_rdev) : 0;
}

static int call_begins(struct trace_event_raw_sys_enter *ctx, __u32 device)
{
	__u64 tid = (__u32)bpf_get_current_pid_tgid();
	struct begun begun = begin();
	begun.values[0] = ctx->args[0];
	begun.values[1] = ctx->args[1];
	begun.values[2] = device;
	bpf_map_update_elem(&calls, &tid, &begun, BPF_ANY);
	return 0;
}

static int call_ends(struct trace_event_raw_sys_exit *ctx)
{
	__u64 tid = (__u32)bpf_get_current_pid_tgid();
	struct begun *begun = bpf_map_lookup_elem(&calls, &tid);
	if (begun == NULL)
		return 0;
	struct event *e = reserve(EVENT_SYSCALL, begun->ids, begun->comm);
	if (e != NULL) {
		e->args[0] = begun->time_ns;
		e->args[1] = ctx->id;
		e->args[2] = begun->values[0];
		e->args[3] = begun->values[1];
		e->args[4] = begun->values[2];
		e->args[5] = ctx->ret;
		submit(e);
	}
	bpf_map_delete_elem(&calls, &tid);
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_mmap")
int sys_enter_mmap(struct trace_event_raw_sys_enter *ctx)
{
	return attaches() ? call_begins(ctx, 0) : 0;
}

SEC("tracepoint/syscalls/sys_exit_mmap")
int sys_exit_mmap(struct trace_event_raw_sys_exit *ctx)
{
	return call_ends(ctx);
}

/* Of device files alone: a driver's. */
SEC("tracepoint/syscalls/sys_enter_ioctl")
int sys_enter_ioctl(struct trace_event_raw_sys_enter *ctx)
{
	__u32 device = attaches() ? device_of(ctx->args[0]) : 0;
	return device != 0 ? call_begins(ctx, device) : 0;
}

SEC("tracepoint/syscalls/sys_exit_ioctl")
int sys_exit_ioctl(struct trace_event_raw_sys_exit *ctx)
{
	return call_ends(ctx);
}

static __u64 block_key(__u32 device, __u64 sector)
{
	return (__u64)device << 40 ^ sector;
}

/* Who asks: the request itself may be issued by a worker of the kernel. */
static int asks(__u32 device, __u64 sector)
{
	__u64 key = block_key(device, sector);
	if (!is_followed())
		return 0;
	struct begun begun = begin();
	bpf_map_update_elem(&bios, &key, &begun, BPF_ANY);
	return 0;
}

SEC("tracepoint/block/block_bio_queue")
int block_bio_queue(struct trace_event_raw_block_bio *ctx)
{
	return asks(ctx->dev, ctx->sector);
}

SEC("tracepoint/block/block_split")
int block_split(struct trace_event_raw_block_split *ctx)
{
	return asks(ctx->dev, ctx->new_sector);
}

SEC("tracepoint/block/block_rq_issue")
int block_rq_issue(struct trace_event_raw_block_rq *ctx)
{
	__u64 key = block_key(ctx->dev, ctx->sector);
	struct begun *asked = bpf_map_lookup_elem(&bios, &key);
	if (asked == NULL)
		return 0;
	struct begun issued = *asked;
	bpf_map_delete_elem(&bios, &key);
	issued.time_ns = bpf_ktime_get_ns();
	issued.values[0] = ctx->dev;
	issued.values[1] = ctx->sector;
	issued.values[2] = ctx->bytes;
	bpf_map_update_elem(&blocks, &key, &issued, BPF_ANY);
	return 0;
}

SEC("tracepoint/block/block_rq_complete")
int block_rq_complete(struct trace_event_raw_block_rq_completion *ctx)
{
	__u64 key = block_key(ctx->dev, ctx->sector);
	struct begun *begun = bpf_map_lookup_elem(&blocks, &key);
	if (begun == NULL)
		return 0;
	struct event *e = reserve(EVENT_BLOCK, begun->ids, begun->comm);
	if (e != NULL) {
		e->args[0] = begun->time_ns;
		e->args[1] = begun->values[0];
		e->args[2] = begun->values[1];
		e->args[3] = begun->values[2];
		submit(e);
	}
	bpf_map_delete_elem(&blocks, &key);
	return 0;
}

SEC("tracepoint/io_uring/io_uring_submit_req")
int io_uring_submit_req(struct trace_event_raw_io_uring_submit_req *ctx)
{
	if (!is_followed())
		return 0;
	struct begun begun = begin();
	begun.values[0] = ctx->opcode;
	__u64 key = (__u64)ctx->req;
	bpf_map_update_elem(&rings, &key, &begun, BPF_ANY);
	return 0;
}

SEC("tracepoint/io_uring/io_uring_complete")
int io_uring_complete(struct trace_event_raw_io_uring_complete *ctx)
{
	__u64 key = (__u64)ctx->req;
	struct begun *begun = bpf_map_lookup_elem(&rings, &key);
	if (begun == NULL)
		return 0;
	struct event *e = reserve(EVENT_URING, begun->ids, begun->comm);
	if (e != NULL) {
		e->args[0] = begun->time_ns;
		e->args[1] = begun->values[0];
		e->args[2] = ctx->res;
		submit(e);
	}
	bpf_map_delete_elem(&rings, &key);
	return 0;
}
