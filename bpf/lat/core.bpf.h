/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What is used of the kernel's structures, in own declarations: the offsets are found in the running kernel's BTF when the
 * programs are loaded (CO-RE), so that a build needs no kernel.
 */
#ifndef LAT_CORE_BPF_H
#define LAT_CORE_BPF_H

#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct trace_event_raw_sys_enter {
	long id;
	unsigned long args[6];
};

struct trace_event_raw_sys_exit {
	long id;
	long ret;
};

struct trace_event_raw_exceptions {
	unsigned long address;
	unsigned long error_code;
};

struct trace_event_raw_block_bio {
	__u32 dev;
	__u64 sector;
};

struct trace_event_raw_block_split {
	__u32 dev;
	__u64 new_sector;
};

struct trace_event_raw_block_rq {
	__u32 dev;
	__u64 sector;
	unsigned int bytes;
};

struct trace_event_raw_block_rq_completion {
	__u32 dev;
	__u64 sector;
};

struct trace_event_raw_io_uring_submit_req {
	void *req;
	__u8 opcode;
};

struct trace_event_raw_io_uring_complete {
	void *req;
	int res;
};

struct inode {
	unsigned short i_mode;
	__u32 i_rdev;
};

struct file {
	struct inode *f_inode;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct task_struct {
	struct files_struct *files;
};

#pragma clang attribute pop

#endif
