/* Memory: memfds, what is in use of them, handles, addresses and mappings. */
#include "tests/fake-cuda/fake.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct fake_mapping *fake_mappings;

struct reservation {
	struct reservation *next;
	cu_pointer base;
	size_t bytes;
};
static struct reservation *reservations;

/* "/memfd:fake-cuda.SCOPE.GPU.BYTES (deleted)" */
static bool parse_name(const char *link, int *gpu, size_t *bytes)
{
	char prefix[128];
	int length = snprintf(prefix, sizeof(prefix), "/memfd:fake-cuda.%s.", fake_setting("FAKE_CUDA_SCOPE", "0"));
	return strncmp(link, prefix, (size_t)length) == 0 && sscanf(link + length, "%d.%zx", gpu, bytes) == 2;
}

#define MAX_SEEN 65536
struct census {
	int gpu;
	size_t bytes;
	unsigned count;
	unsigned long inodes[MAX_SEEN];
};

static void count_one(struct census *census, const char *link, unsigned long inode)
{
	int gpu;
	size_t bytes;
	if (!parse_name(link, &gpu, &bytes) || gpu != census->gpu)
		return;
	for (unsigned i = 0; i < census->count; i++)
		if (census->inodes[i] == inode)
			return;
	if (census->count < MAX_SEEN)
		census->inodes[census->count++] = inode;
	census->bytes += bytes;
}

static void count_fds(struct census *census, const char *pid)
{
	char path[300], link[256];
	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	DIR *folder = opendir(path);
	struct dirent *entry;
	while (folder != NULL && (entry = readdir(folder)) != NULL) {
		struct stat st;
		ssize_t length = readlinkat(dirfd(folder), entry->d_name, link, sizeof(link) - 1);
		if (length <= 0)
			continue;
		link[length] = '\0';
		if (strncmp(link, "/memfd:fake-cuda", 16) == 0 && fstatat(dirfd(folder), entry->d_name, &st, 0) == 0)
			count_one(census, link, st.st_ino);
	}
	if (folder != NULL)
		closedir(folder);
}

static void count_mappings(struct census *census, const char *pid)
{
	char path[300], line[512];
	snprintf(path, sizeof(path), "/proc/%s/maps", pid);
	FILE *file = fopen(path, "re");
	while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
		unsigned long inode;
		int at = 0;
		if (sscanf(line, "%*s %*s %*s %*s %lu %n", &inode, &at) == 1 && at > 0)
			count_one(census, line + at, inode);
	}
	if (file != NULL)
		fclose(file);
}

size_t fake_total_bytes(void)
{
	return strtoull(fake_setting("FAKE_CUDA_MEMORY", "268435456"), NULL, 0);
}

size_t fake_free_bytes(int gpu)
{
	static struct census census;
	DIR *folder = opendir("/proc");
	struct dirent *entry;
	census.gpu = gpu;
	census.bytes = 0;
	census.count = 0;
	while (folder != NULL && (entry = readdir(folder)) != NULL) {
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		count_fds(&census, entry->d_name);
		count_mappings(&census, entry->d_name);
	}
	if (folder != NULL)
		closedir(folder);
	size_t total = fake_total_bytes();
	return census.bytes < total ? total - census.bytes : 0;
}

struct fake_memory *fake_memory_new(int gpu, size_t bytes, cu_result *result)
{
	char name[128];
	*result = CU_OUT_OF_MEMORY;
	if (bytes > fake_free_bytes(gpu))
		return NULL;
	snprintf(name, sizeof(name), "fake-cuda.%s.%d.%zx", fake_setting("FAKE_CUDA_SCOPE", "0"), gpu, bytes);
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct fake_memory *memory = malloc(sizeof(*memory));
	if (fd < 0 || memory == NULL || posix_fallocate(fd, 0, (off_t)bytes) != 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
		if (fd >= 0)
			close(fd);
		free(memory);
		return NULL;
	}
	/* Not zero, at the beginnings and ends of pages: a real GPU promises nothing either. */
	for (size_t at = 0; at < bytes; at += FAKE_GRANULARITY / 2)
		if (pwrite(fd, "\xa5\xa5\xa5\xa5", 4,
			   (off_t)(at % FAKE_GRANULARITY == 0 ? at : at + FAKE_GRANULARITY / 2 - 4)) != 4)
			break;
	*memory = (struct fake_memory){.fd = fd, .gpu = gpu, .bytes = bytes, .users = 1};
	*result = CU_OK;
	return memory;
}

struct fake_memory *fake_memory_import(int fd, cu_result *result)
{
	char path[64], link[256];
	int gpu;
	size_t bytes;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ssize_t length = readlink(path, link, sizeof(link) - 1);
	link[length > 0 ? length : 0] = '\0';
	*result = CU_UNKNOWN;
	if (length <= 0 || !parse_name(link, &gpu, &bytes))
		return NULL;
	struct fake_memory *memory = malloc(sizeof(*memory));
	int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	*result = CU_OUT_OF_MEMORY;
	if (memory == NULL || own < 0) {
		free(memory);
		return NULL;
	}
	*memory = (struct fake_memory){.fd = own, .gpu = gpu, .bytes = bytes, .users = 1};
	*result = CU_OK;
	return memory;
}

void fake_memory_drop(struct fake_memory *memory)
{
	if (--memory->users > 0)
		return;
	close(memory->fd);
	free(memory);
}

/* In what cuMemAddressReserve gave, and free. */
static bool range_is_free(cu_pointer base, size_t bytes)
{
	bool reserved = false;
	for (struct reservation *r = reservations; r != NULL; r = r->next)
		reserved = reserved || (base >= r->base && base + bytes <= r->base + r->bytes);
	for (struct fake_mapping *m = fake_mappings; m != NULL; m = m->next)
		if (base < m->base + m->bytes && m->base < base + bytes)
			return false;
	return reserved;
}

cu_result fake_map(cu_pointer base, struct fake_memory *memory, struct fake_mapping **made)
{
	struct fake_mapping *m = calloc(1, sizeof(*m));
	void *shadow = m == NULL ? MAP_FAILED : mmap(NULL, memory->bytes, PROT_NONE, MAP_SHARED, memory->fd, 0);
	if (shadow == MAP_FAILED) {
		free(m);
		return CU_OUT_OF_MEMORY;
	}
	*m = (struct fake_mapping){
		.next = fake_mappings, .base = base, .bytes = memory->bytes, .memory = memory, .shadow = shadow};
	memory->users++;
	fake_mappings = m;
	fake_live[LIVE_MAPPINGS]++;
	*made = m;
	return CU_OK;
}

void fake_unmap(struct fake_mapping **place)
{
	struct fake_mapping *m = *place;
	*place = m->next;
	munmap(m->shadow, m->bytes);
	fake_memory_drop(m->memory);
	free(m);
	fake_live[LIVE_MAPPINGS]--;
}

cu_result fake_protect(struct fake_mapping *mapping, int gpu, int access)
{
	int most = 0;
	mapping->access[gpu] = access;
	for (int i = 0; i < FAKE_MAX_GPUS; i++)
		most |= mapping->access[i];
	int protection = most == CU_ACCESS_READWRITE ? PROT_READ | PROT_WRITE : most != 0 ? PROT_READ : PROT_NONE;
	return mprotect(mapping->shadow, mapping->bytes, protection) == 0 ? CU_OK : CU_OUT_OF_MEMORY;
}

static struct fake_mapping *mapping_at(cu_pointer address)
{
	struct fake_mapping *m = fake_mappings;
	while (m != NULL && (address < m->base || address >= m->base + m->bytes))
		m = m->next;
	return m;
}

cu_result fake_each(int gpu, cu_pointer address, size_t bytes, int access,
		    void (*piece)(void *context, unsigned char *at, size_t bytes), void *context)
{
	/* Twice: first whether all of it may be accessed. */
	for (int pass = 0; pass < 2; pass++) {
		for (size_t done = 0; done < bytes;) {
			struct fake_mapping *m = mapping_at(address + done);
			if (m == NULL || (m->access[gpu] & access) != access)
				return CU_INVALID_VALUE;
			size_t offset = address + done - m->base;
			size_t part = bytes - done < m->bytes - offset ? bytes - done : m->bytes - offset;
			if (pass == 1)
				piece(context, m->shadow + offset, part);
			done += part;
		}
	}
	return CU_OK;
}

/* ---- the driver's functions ---- */

static bool valid(const cu_allocation *a)
{
	return a->type == CU_ALLOCATION_PINNED && a->location.type == CU_LOCATION_DEVICE && a->location.id >= 0 &&
	       a->location.id < fake_visible_count;
}

API cu_result cuMemGetAllocationGranularity(size_t *bytes, const cu_allocation *allocation, cu_granularity which)
{
	ENTER();
	(void)which;
	if (!valid(allocation))
		RETURN(CU_INVALID_DEVICE);
	*bytes = FAKE_GRANULARITY;
	RETURN(CU_OK);
}

API cu_result cuMemCreate(cu_memory *memory, size_t bytes, const cu_allocation *allocation, unsigned long long flags)
{
	ENTER();
	cu_result result;
	if (!valid(allocation) || bytes == 0 || bytes % FAKE_GRANULARITY != 0 || flags != 0)
		RETURN(CU_INVALID_VALUE);
	struct fake_memory *made = fake_memory_new(fake_visible[allocation->location.id], bytes, &result);
	if (made != NULL) {
		*memory = (cu_memory)(uintptr_t)made;
		fake_live[LIVE_HANDLES]++;
	}
	RETURN(result);
}

API cu_result cuMemRelease(cu_memory memory)
{
	ENTER();
	fake_memory_drop((struct fake_memory *)(uintptr_t)memory);
	fake_live[LIVE_HANDLES]--;
	RETURN(CU_OK);
}

API cu_result cuMemExportToShareableHandle(void *fd, cu_memory memory, cu_handle_type type, unsigned long long flags)
{
	ENTER();
	if (type != CU_HANDLE_POSIX_FD || flags != 0)
		RETURN(CU_INVALID_VALUE);
	int exported = fcntl(((struct fake_memory *)(uintptr_t)memory)->fd, F_DUPFD, 3);
	if (exported < 0)
		RETURN(CU_UNKNOWN);
	memcpy(fd, &exported, sizeof(exported));
	RETURN(CU_OK);
}

API cu_result cuMemImportFromShareableHandle(cu_memory *memory, void *fd, cu_handle_type type)
{
	ENTER();
	cu_result result;
	if (type != CU_HANDLE_POSIX_FD)
		RETURN(CU_INVALID_VALUE);
	struct fake_memory *made = fake_memory_import((int)(intptr_t)fd, &result);
	if (made != NULL) {
		*memory = (cu_memory)(uintptr_t)made;
		fake_live[LIVE_HANDLES]++;
	}
	RETURN(result);
}

API cu_result cuMemGetAllocationPropertiesFromHandle(cu_allocation *allocation, cu_memory memory)
{
	ENTER();
	int id = CU_LOCATION_UNSEEN;
	for (int i = 0; i < fake_visible_count; i++)
		if (fake_visible[i] == ((struct fake_memory *)(uintptr_t)memory)->gpu)
			id = i;
	*allocation = (cu_allocation){
		.type = CU_ALLOCATION_PINNED, .handle_types = CU_HANDLE_POSIX_FD, .location = {CU_LOCATION_DEVICE, id}};
	RETURN(CU_OK);
}

static cu_result reserve(cu_pointer *address, size_t bytes)
{
	struct reservation *made = malloc(sizeof(*made));
	/* Room to align it as the real one does. */
	char *at = mmap(NULL, bytes + FAKE_GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (made == NULL || at == MAP_FAILED) {
		free(made);
		return CU_OUT_OF_MEMORY;
	}
	char *base = (char *)(((uintptr_t)at + FAKE_GRANULARITY - 1) / FAKE_GRANULARITY * FAKE_GRANULARITY);
	if (base > at)
		munmap(at, (size_t)(base - at));
	munmap(base + bytes, FAKE_GRANULARITY - (size_t)(base - at));
	*made = (struct reservation){reservations, (cu_pointer)(uintptr_t)base, bytes};
	reservations = made;
	fake_live[LIVE_RESERVATIONS]++;
	*address = made->base;
	return CU_OK;
}

static cu_result unreserve(cu_pointer address, size_t bytes)
{
	for (struct reservation **place = &reservations; *place != NULL; place = &(*place)->next) {
		struct reservation *r = *place;
		if (r->base != address || r->bytes != bytes)
			continue;
		for (struct fake_mapping *m = fake_mappings; m != NULL; m = m->next)
			if (m->base >= address && m->base < address + bytes)
				return CU_INVALID_VALUE;
		*place = r->next;
		munmap((void *)(uintptr_t)address, bytes);
		free(r);
		fake_live[LIVE_RESERVATIONS]--;
		return CU_OK;
	}
	return CU_INVALID_VALUE;
}

API cu_result cuMemAddressReserve(cu_pointer *address, size_t bytes, size_t alignment, cu_pointer wanted,
				  unsigned long long flags)
{
	ENTER();
	(void)alignment;
	(void)wanted;
	if (bytes == 0 || bytes % FAKE_GRANULARITY != 0 || flags != 0)
		RETURN(CU_INVALID_VALUE);
	RETURN(reserve(address, bytes));
}

API cu_result cuMemAddressFree(cu_pointer address, size_t bytes)
{
	ENTER();
	RETURN(unreserve(address, bytes));
}

API cu_result cuMemMap(cu_pointer address, size_t bytes, size_t offset, cu_memory memory, unsigned long long flags)
{
	ENTER();
	struct fake_memory *m = (struct fake_memory *)(uintptr_t)memory;
	struct fake_mapping *made;
	if (bytes != m->bytes || offset != 0)
		RETURN(CU_NOT_SUPPORTED);
	if (flags != 0 || !range_is_free(address, bytes))
		RETURN(CU_INVALID_VALUE);
	RETURN(fake_map(address, m, &made));
}

API cu_result cuMemUnmap(cu_pointer address, size_t bytes)
{
	ENTER();
	size_t unmapped = 0;
	for (struct fake_mapping **place = &fake_mappings; *place != NULL;) {
		struct fake_mapping *m = *place;
		if (m->base < address || m->base + m->bytes > address + bytes) {
			place = &m->next;
			continue;
		}
		unmapped += m->bytes;
		fake_unmap(place);
	}
	RETURN(unmapped == bytes ? CU_OK : CU_INVALID_VALUE);
}

API cu_result cuMemSetAccess(cu_pointer address, size_t bytes, const cu_access *access, size_t count)
{
	ENTER();
	size_t covered = 0;
	cu_result result = CU_OK;
	for (struct fake_mapping *m = fake_mappings; m != NULL; m = m->next) {
		if (m->base < address || m->base + m->bytes > address + bytes)
			continue;
		covered += m->bytes;
		for (size_t i = 0; result == CU_OK && i < count; i++)
			result = access[i].location.id < 0 || access[i].location.id >= fake_visible_count
					 ? CU_INVALID_DEVICE
					 : fake_protect(m, fake_visible[access[i].location.id], access[i].flags);
	}
	RETURN(covered == bytes ? result : CU_INVALID_VALUE);
}

API cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	ENTER();
	cu_result result;
	struct fake_context *c = fake_current(&result);
	if (c == NULL)
		RETURN(result);
	*free_bytes = fake_free_bytes(c->gpu);
	*total_bytes = fake_total_bytes();
	RETURN(CU_OK);
}

/* ---- memory that cannot be exported as an fd ---- */

static cu_result allocate(struct fake_memory *memory, int gpu, cu_pointer *address, struct fake_mapping **made)
{
	cu_result result = reserve(address, memory->bytes);
	if (result != CU_OK)
		return result;
	result = fake_map(*address, memory, made);
	if (result == CU_OK)
		result = fake_protect(*made, gpu, CU_ACCESS_READWRITE);
	if (result != CU_OK)
		unreserve(*address, memory->bytes);
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

static cu_result free_mapping(cu_pointer address, bool imported)
{
	for (struct fake_mapping **place = &fake_mappings; *place != NULL; place = &(*place)->next) {
		struct fake_mapping *m = *place;
		if (m->base != address || m->imported != imported || !(m->allocated || m->imported))
			continue;
		size_t bytes = m->bytes;
		fake_unmap(place);
		fake_live[LIVE_ALLOCATIONS]--;
		return unreserve(address, bytes);
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
};

API cu_result cuIpcGetMemHandle(cu_ipc_handle *handle, cu_pointer address)
{
	ENTER();
	struct fake_mapping *m = mapping_at(address);
	if (m == NULL || !m->allocated)
		RETURN(CU_INVALID_VALUE);
	struct ipc ipc = {getpid(), m->memory->fd};
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &ipc, sizeof(ipc));
	RETURN(CU_OK);
}

/* Dies with its exporter, and maps read-write, as the real one. */
API cu_result cuIpcOpenMemHandle_v2(cu_pointer *address, cu_ipc_handle handle, unsigned flags)
{
	ENTER();
	cu_result result;
	struct fake_context *c = fake_current(&result);
	struct fake_mapping *made;
	struct ipc ipc;
	char path[64];
	memcpy(&ipc, &handle, sizeof(ipc));
	if (c == NULL)
		RETURN(result);
	if (flags != CU_IPC_LAZY_PEER)
		RETURN(CU_INVALID_VALUE);
	if (ipc.pid == getpid())
		RETURN(CU_INVALID_CONTEXT);
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", ipc.pid, ipc.fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		RETURN(CU_INVALID_HANDLE);
	struct fake_memory *memory = fake_memory_import(fd, &result);
	close(fd);
	if (memory == NULL)
		RETURN(result);
	result = allocate(memory, c->gpu, address, &made);
	fake_memory_drop(memory);
	if (result == CU_OK) {
		made->imported = true;
		fake_live[LIVE_ALLOCATIONS]++;
	}
	RETURN(result);
}

API cu_result cuIpcCloseMemHandle(cu_pointer address)
{
	ENTER();
	RETURN(free_mapping(address, true));
}
