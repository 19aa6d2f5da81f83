/*
 * Host memory: a segment is a memfd.
 *
 * How bytes get in decides how fast: pwrite into fresh 4 KiB pages needs no zeroing and no page fault and is nearly twice as
 * fast as a copy through a mapping, but does not get huge pages where they are only had on advice; then the mapping is
 * populated and copied into (huge.c).
 *
 * Invariants: a segment is mapped writable only between create and seal, by its creator; once sealed all pages exist, so
 * that no access of a reader can fail (SIGBUS) or allocate; what others map was checked to be sealed and complete first.
 */
#include "bpf/probes.h"
#include "loader/device/backends.h"
#include "loader/device/huge.h"
#include "loader/device/memory.h"
#include "loader/device/range.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* The kernel takes 249 bytes of name; the name is for people who look into /proc. */
#define MAX_NAME_BYTES 200
/* Memory is allocated as it is written, so others may take it meanwhile: looked at again after so many bytes. */
#define RECHECK_BYTES ((uint64_t)256 << 20)

static int host_open(const char *device, struct ipcc_error *err)
{
	(void)device;
	(void)err;
	return 0;
}

static void host_close(const char *device)
{
	(void)device;
}

static int host_memory(const char *device, struct device_memory *memory, struct ipcc_error *err)
{
	struct memory_room room;
	(void)device;
	int rc = memory_room("", &room, err);
	if (rc == 0)
		*memory = (struct device_memory){room.available_bytes, room.limit_bytes};
	return rc;
}

static int host_granularity(const char *device, uint64_t *bytes, struct ipcc_error *err)
{
	(void)device;
	(void)err;
	*bytes = 1;
	return 0;
}

static int host_memory_check(const char *device, uint64_t bytes, struct ipcc_error *err)
{
	(void)device;
	return memory_check("", bytes, err);
}

static int check_size(uint64_t bytes, struct ipcc_error *err)
{
	if (bytes == 0 || bytes > INT64_MAX)
		return fail(err, IPCC_USAGE, "a host segment cannot have %" PRIu64 " bytes", bytes);
	return 0;
}

static int host_create(const char *device, const char *name, uint64_t bytes, struct device_segment *segment,
		       struct ipcc_error *err)
{
	char short_name[MAX_NAME_BYTES];
	(void)device;

	int r = check_size(bytes, err);
	/* The kernel would allocate page after page until it has to kill somebody. */
	if (r == 0)
		r = memory_check("", bytes, err);
	if (r != 0)
		return r;
	snprintf(short_name, sizeof(short_name), "%s", name);
	int made = memfd_new_sparse(short_name, bytes);
	cleanup_fd int fd = made >= 0 ? made : -1;
	/* tmpfs says ENOSPC for memory too. */
	if (made == -ENOSPC || made == -ENOMEM)
		return fail(err, IPCC_NO_MEMORY,
			    "no memory for a host segment of %" PRIu64 " bytes: %s; evict a model or end something",
			    bytes, strerror(-made));
	if (made < 0)
		return fail_errno(err, -made, "creating a host segment of %" PRIu64 " bytes", bytes);
	void *address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (address == MAP_FAILED)
		return fail_errno(err, errno, "mapping a host segment of %" PRIu64 " bytes", bytes);
	bool huge = huge_advise(address, bytes);
	*segment = (struct device_segment){.fd = fd_take(&fd), .address = address, .bytes = bytes, .huge = huge};
	return 0;
}

static int host_write(struct device_segment *segment, uint64_t offset, const void *from, uint64_t bytes,
		      struct ipcc_error *err)
{
	int r;

	uint64_t before = __atomic_fetch_add(&segment->written, bytes, __ATOMIC_RELAXED);
	uint64_t after = before + bytes, left = after < segment->bytes ? segment->bytes - after : 0;
	if (left > 0 && before / RECHECK_BYTES != after / RECHECK_BYTES) {
		r = memory_check("", left < RECHECK_BYTES ? left : RECHECK_BYTES, err);
		if (r != 0)
			return r;
	}
	if (segment->huge)
		r = huge_copy((uint8_t *)segment->address + offset, from, bytes);
	else
		r = fd_write_exact(segment->fd, from, bytes, offset);
	if (r == -ENOSPC || r == -ENOMEM)
		return fail(err, IPCC_NO_MEMORY, "no memory for %" PRIu64 " more bytes of a host segment", bytes);
	return r < 0 ? fail_errno(err, -r, "writing %" PRIu64 " bytes of a host segment", bytes) : 0;
}

static int host_read(const struct device_segment *segment, uint64_t offset, void *to, uint64_t bytes,
		     struct ipcc_error *err)
{
	int r = fd_read_exact(segment->fd, to, bytes, offset);
	return r < 0 ? fail_errno(err, -r, "reading back %" PRIu64 " bytes of a host segment", bytes) : 0;
}

static uint64_t host_huge_bytes(const struct device_segment *segment)
{
	return segment->huge ? huge_bytes_of(segment->address) : 0;
}

static void unmap_segment(struct device_segment *segment)
{
	if (segment->address != NULL)
		munmap(segment->address, segment->bytes);
	segment->address = NULL;
}

static int host_seal(struct device_segment *segment, struct ipcc_error *err)
{
	unmap_segment(segment);
	int r = memfd_complete(segment->fd, segment->bytes);
	if (r == -ENOSPC || r == -ENOMEM)
		return fail(err, IPCC_NO_MEMORY, "no memory for the rest of a host segment of %" PRIu64 " bytes",
			    segment->bytes);
	if (r == 0)
		r = memfd_seal(segment->fd);
	if (r == -EBUSY)
		return fail_errno(
			err, EBUSY,
			"a host segment cannot be sealed: it is still mapped or pinned somewhere; unmap it there "
			"first");
	return r < 0 ? fail_errno(err, -r, "sealing a host segment") : 0;
}

static void host_destroy(struct device_segment *segment)
{
	unmap_segment(segment);
	fd_close(&segment->fd);
}

static int map_one(int fd, uint64_t bytes, bool private_copy, void **address, struct ipcc_error *err)
{
	struct memfd_facts facts;

	int r = check_size(bytes, err);
	if (r == 0)
		r = memfd_check(fd, "segment", &facts, err);
	if (r != 0)
		return r;
	if (facts.bytes != bytes)
		return fail(err, IPCC_INVALID, "segment: has %" PRIu64 " bytes, its manifest says %" PRIu64,
			    facts.bytes, bytes);
	PROBE_SEGMENT_IMPORTED(fd, bytes);
	int access = private_copy ? PROT_READ | PROT_WRITE : PROT_READ;
	void *mapped = mmap(NULL, bytes, access, private_copy ? MAP_PRIVATE : MAP_SHARED, fd, 0);
	/* Before Linux 6.7 a sealed memfd cannot be mapped shared, not even for reading, through a writable fd. A private
	 * mapping that is only read has the same pages. */
	if (mapped == MAP_FAILED && errno == EPERM)
		mapped = mmap(NULL, bytes, access, MAP_PRIVATE, fd, 0);
	if (mapped == MAP_FAILED)
		return fail_errno(err, errno, "mapping a segment of %" PRIu64 " bytes", bytes);
	PROBE_SEGMENT_MAPPED(mapped, bytes);
	*address = mapped;
	return 0;
}

static void host_unmap(struct device_range *range)
{
	if (range == NULL)
		return;
	for (uint32_t i = 0; i < range->count; i++)
		if (range->addresses[i] != NULL)
			munmap(range->addresses[i], range->bytes[i]);
	free(range);
}

static int host_map(const struct device_request *request, struct device_range **range, struct ipcc_error *err)
{
	if (request->access == DEVICE_WRITE || request->reader != NULL)
		return fail(err, IPCC_USAGE, "sealed host memory is mapped for reading, by the host");
	struct device_range *made = device_range_new(sizeof(*made), &device_host, request, err);
	if (made == NULL)
		return IPCC_NO_MEMORY;
	for (; made->count < request->count; made->count++) {
		uint32_t i = made->count;
		int rc = map_one(request->fds[i], request->bytes[i], request->access == DEVICE_PRIVATE,
				 &made->addresses[i], err);
		if (rc != 0) {
			host_unmap(made);
			return fail_within(err, "segment %u", i);
		}
	}
	*range = made;
	return 0;
}

static int host_fetch(const struct device_range *range, uint32_t segment, uint64_t offset, void *to, uint64_t bytes,
		      struct ipcc_error *err)
{
	int rc = device_range_check(range, segment, offset, bytes, err);
	if (rc == 0)
		memcpy(to, (const uint8_t *)range->addresses[segment] + offset, bytes);
	return rc;
}

const struct device device_host = {
	.is_host = true,
	.open = host_open,
	.close = host_close,
	.memory = host_memory,
	.memory_check = host_memory_check,
	.granularity = host_granularity,
	.create = host_create,
	.write = host_write,
	.read = host_read,
	.huge_bytes = host_huge_bytes,
	.seal = host_seal,
	.destroy = host_destroy,
	.map = host_map,
	.fetch = host_fetch,
	.unmap = host_unmap,
};
