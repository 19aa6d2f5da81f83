/*
 * A driver without a GPU: libcuda.so.1 whose memory is memfds. It is as true as tests/gpu/conformance says, which passes
 * here and on real cards.
 *
 *	FAKE_CUDA_GPUS=N	    how many GPUs the machine has (default 1)
 *	FAKE_CUDA_MEMORY=BYTES	    of each (default 256 MiB)
 *	FAKE_CUDA_SCOPE=NAME	    whose memory counts: that of all processes with the same scope
 *	FAKE_CUDA_VERSION=N	    what cuDriverGetVersion says (default 13000)
 *	FAKE_CUDA_FAIL=F:N:CODE,... the N-th call of F in a process fails with CODE (N 0: every call)
 *	FAKE_CUDA_REACHED=FILE	    gets a line when such a failure happened
 *	FAKE_CUDA_LOG=FILE	    gets a line for each call
 *	FAKE_CUDA_LEAKS=FILE	    gets a line for each kind of thing that a process still has at its end
 *	FAKE_CUDA_NO_PEERS=1	    GPUs do not reach each other
 *	FAKE_CUDA_NO_FDS=1	    memory cannot be exported as fds
 *	CUDA_VISIBLE_DEVICES	    numbers or UUIDs, as the real one
 *
 * How it works: memory is a memfd (sealed against a change of size) whose name tells scope, GPU and size; it lives as long
 * as any process has it open or mapped, and what is in use is counted by looking into /proc. GPU addresses are reserved and
 * not accessible, as on a real machine; behind each mapping stands a second one with the page protection that was set,
 * through which copies and "kernels" go. Transfers to and from pinned memory happen when their stream is waited for, so
 * that code which does not wait is found out.
 */
#ifndef FAKE_H
#define FAKE_H

#include "loader/device/cuda_abi.h"

#include <pthread.h>
#include <stdbool.h>

#define API __attribute__((visibility("default")))

#define FAKE_MAX_GPUS	 16
#define FAKE_GRANULARITY ((size_t)2 << 20)

struct fake_context {
	int gpu; /* physical number */
	unsigned retained;
	cu_result broken; /* a kernel's fault: every later call says so */
};

struct fake_memory {
	int fd;
	int gpu;
	size_t bytes;
	unsigned users; /* handles and mappings */
};

struct fake_mapping {
	struct fake_mapping *next;
	cu_pointer base;
	size_t bytes;
	struct fake_memory *memory;
	unsigned char *shadow;
	int access[FAKE_MAX_GPUS]; /* CU_ACCESS_* of each GPU */
	bool allocated;		   /* by cuMemAlloc: its addresses go with it */
	unsigned opened;	   /* how often, by cuIpcOpenMemHandle */
	int opener;		   /* the GPU in whose context */
};

/* One lock around everything; held by every function from fake_enter to fake_leave. */
extern pthread_mutex_t fake_lock;
extern struct fake_context fake_contexts[FAKE_MAX_GPUS];
extern int fake_visible[FAKE_MAX_GPUS], fake_visible_count; /* physical numbers */
extern int fake_live[8];				    /* what would leak, by kind */
enum { LIVE_HANDLES, LIVE_MAPPINGS, LIVE_RESERVATIONS, LIVE_CONTEXTS, LIVE_STREAMS, LIVE_PINNED, LIVE_ALLOCATIONS };

/* Takes the lock, logs, and says whether this call fails, without the lock then. */
cu_result fake_enter(const char *function);
cu_result fake_leave(cu_result result);
#define ENTER()                                                                                                        \
	do {                                                                                                           \
		cu_result injected = fake_enter(__func__);                                                             \
		if (injected != CU_OK)                                                                                 \
			return injected;                                                                               \
	} while (0)
#define RETURN(result) return fake_leave(result)

/* The current context, or NULL; its own error counts. */
struct fake_context *fake_current(cu_result *result);
const char *fake_setting(const char *name, const char *otherwise);

size_t fake_free_bytes(int gpu);
size_t fake_total_bytes(void);
struct fake_memory *fake_memory_new(int gpu, size_t bytes, cu_result *result);
struct fake_memory *fake_memory_import(int fd, cu_result *result);
void fake_memory_drop(struct fake_memory *memory);

extern struct fake_mapping *fake_mappings;
cu_result fake_map(cu_pointer base, struct fake_memory *memory, struct fake_mapping **made);
void fake_unmap(struct fake_mapping **place);
cu_result fake_protect(struct fake_mapping *mapping, int gpu, int access);
/* Calls `piece` for each part of [address, address + bytes) that `gpu` may access so; CU_INVALID_VALUE if any may not. */
cu_result fake_each(int gpu, cu_pointer address, size_t bytes, int access,
		    void (*piece)(void *context, unsigned char *at, size_t bytes), void *context);
bool fake_is_pinned(const void *address);

struct fake_mapping *fake_mapping_at(cu_pointer address);
cu_result fake_reserve(cu_pointer *address, size_t bytes);
cu_result fake_unreserve(cu_pointer address, size_t bytes);
extern bool fake_legacy_stays; /* handles that were opened are nobody's leak: closing them is not to be called */

#endif
