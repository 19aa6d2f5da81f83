/* Memory: memfds, what is in use of them, and handles. */
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
	if (fake_setting("FAKE_CUDA_NO_FDS", NULL) != NULL)
		RETURN(CU_NOT_SUPPORTED);
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
