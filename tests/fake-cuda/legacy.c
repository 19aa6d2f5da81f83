/*
 * Memory that cannot be exported as an fd, and legacy IPC handles to it.
 *
 * A handle names an allocation of a living process: it is opened through /proc, so it is worth nothing when that process
 * has ended or has freed the allocation; but what a process has open it may open again, at the same address, counted. What
 * is open passes for memory of the GPU in whose context it was opened.
 */
#include "tests/fake-cuda/fake.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool fake_legacy_stays;

static cu_result allocate(struct fake_memory *memory, int gpu, cu_pointer *address, struct fake_mapping **made)
{
	cu_result result = fake_reserve(address, memory->bytes);
	if (result != CU_OK)
		return result;
	result = fake_map(*address, memory, made);
	if (result == CU_OK)
		result = fake_protect(*made, gpu, CU_ACCESS_READWRITE);
	if (result != CU_OK)
		fake_unreserve(*address, memory->bytes);
	return result;
}

API cu_result cuMemAlloc_v2(cu_pointer *address, size_t bytes)
{
	ENTER();
	cu_result result;
	struct fake_context *c = fake_current(&result);
	struct fake_mapping *made;
	size_t rounded = (bytes + FAKE_GRANULARITY - 1) / FAKE_GRANULARITY * FAKE_GRANULARITY;
	struct fake_memory *memory = c == NULL ? NULL : fake_memory_new(c->gpu, rounded, &result);
	if (memory == NULL)
		RETURN(result);
	result = allocate(memory, c->gpu, address, &made);
	fake_memory_drop(memory);
	if (result == CU_OK) {
		made->allocated = true;
		fake_live[LIVE_ALLOCATIONS]++;
	}
	RETURN(result);
}

static cu_result free_mapping(cu_pointer address, bool opened)
{
	for (struct fake_mapping **place = &fake_mappings; *place != NULL; place = &(*place)->next) {
		struct fake_mapping *m = *place;
		if (m->base != address || !(opened ? m->opened > 0 : m->allocated))
			continue;
		fake_live[LIVE_ALLOCATIONS]--;
		if (opened && --m->opened > 0)
			return CU_OK;
		size_t bytes = m->bytes;
		fake_unmap(place);
		return fake_unreserve(address, bytes);
	}
	return CU_INVALID_VALUE;
}

API cu_result cuMemFree_v2(cu_pointer address)
{
	ENTER();
	RETURN(free_mapping(address, false));
}

struct ipc {
	int pid, fd;
	ino_t inode;
};

API cu_result cuIpcGetMemHandle(cu_ipc_handle *handle, cu_pointer address)
{
	ENTER();
	struct fake_mapping *m = fake_mapping_at(address);
	struct stat st;
	if (m == NULL || !m->allocated || fstat(m->memory->fd, &st) != 0)
		RETURN(CU_INVALID_VALUE);
	struct ipc ipc = {.pid = getpid(), .fd = m->memory->fd, .inode = st.st_ino};
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &ipc, sizeof(ipc));
	RETURN(CU_OK);
}

/* The exporter's memory, or NULL. */
static struct fake_memory *memory_of(const struct ipc *ipc, cu_result *result)
{
	char path[64];
	struct stat st;
	snprintf(path, sizeof(path), "/proc/%d/fd", ipc->pid);
	*result = CU_INVALID_HANDLE; /* it has ended */
	if (ipc->pid <= 0 || access(path, X_OK) != 0)
		return NULL;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", ipc->pid, ipc->fd);
	*result = CU_INVALID_VALUE; /* it has freed it */
	if (stat(path, &st) != 0 || st.st_ino != ipc->inode)
		return NULL;
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	struct fake_memory *memory = fake_memory_import(fd, result);
	close(fd);
	return memory;
}

static struct fake_mapping *opened_before(ino_t inode)
{
	struct fake_mapping *m = fake_mappings;
	struct stat st;
	while (m != NULL && (m->opened == 0 || fstat(m->memory->fd, &st) != 0 || st.st_ino != inode))
		m = m->next;
	return m;
}

static cu_result open_new(const struct ipc *ipc, int gpu, struct fake_mapping **made)
{
	cu_result result;
	cu_pointer address;
	struct fake_memory *memory = memory_of(ipc, &result);
	if (memory == NULL)
		return result;
	if (memory->gpu != gpu && fake_setting("FAKE_CUDA_NO_PEERS", NULL) != NULL)
		result = CU_PEER_ACCESS_UNSUPPORTED;
	else
		result = allocate(memory, gpu, &address, made);
	fake_memory_drop(memory);
	if (result == CU_OK)
		(*made)->opener = gpu;
	fake_live[LIVE_MAPPINGS] -= result == CU_OK && fake_legacy_stays;
	fake_live[LIVE_RESERVATIONS] -= result == CU_OK && fake_legacy_stays;
	return result;
}

/* Maps read-write, as the real one; memory of another GPU too, if it can be reached. */
API cu_result cuIpcOpenMemHandle_v2(cu_pointer *address, cu_ipc_handle handle, unsigned flags)
{
	ENTER();
	cu_result result;
	struct fake_context *c = fake_current(&result);
	struct ipc ipc;
	memcpy(&ipc, &handle, sizeof(ipc));
	if (c == NULL)
		RETURN(result);
	if (flags != CU_IPC_LAZY_PEER)
		RETURN(CU_INVALID_VALUE);
	if (ipc.pid == getpid())
		RETURN(CU_INVALID_CONTEXT);
	struct fake_mapping *made = opened_before(ipc.inode);
	result = made != NULL ? fake_protect(made, c->gpu, CU_ACCESS_READWRITE) : open_new(&ipc, c->gpu, &made);
	if (result == CU_OK) {
		*address = made->base;
		made->opened++;
		fake_live[LIVE_ALLOCATIONS] += !fake_legacy_stays;
	}
	RETURN(result);
}

API cu_result cuIpcCloseMemHandle(cu_pointer address)
{
	ENTER();
	RETURN(free_mapping(address, true));
}

/* The ordinal of its device: the only attribute that anybody asks for. */
API cu_result cuPointerGetAttribute(void *value, int attribute, cu_pointer address);
API cu_result cuPointerGetAttribute(void *value, int attribute, cu_pointer address)
{
	ENTER();
	struct fake_mapping *m = fake_mapping_at(address);
	int device = CU_LOCATION_UNSEEN;
	if (m == NULL || attribute != 9)
		RETURN(CU_INVALID_VALUE);
	for (int i = 0; i < fake_visible_count; i++)
		if (fake_visible[i] == (m->opened > 0 ? m->opener : m->memory->gpu))
			device = i;
	memcpy(value, &device, sizeof(device));
	RETURN(CU_OK);
}

API cu_result cuMemGetAddressRange_v2(cu_pointer *base, size_t *bytes, cu_pointer address)
{
	ENTER();
	struct fake_mapping *m = fake_mapping_at(address);
	if (m == NULL)
		RETURN(CU_INVALID_VALUE);
	*base = m->base;
	*bytes = m->bytes;
	RETURN(CU_OK);
}
