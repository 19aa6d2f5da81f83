/* What is relied on of memory within one process: creating, exporting, mapping, accounting, pinning. See conformance.c. */
#include "tests/gpu/conformance.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void check_memory(void)
{
	size_t granule = 0;
	cu_allocation a = allocation();
	cu_memory memory = 0, again;
	IS("a granularity is named without a context", cu.granularity(&granule, &a, CU_GRANULARITY_MINIMUM), CU_OK);
	check("and it is 2 MiB", granule == 2 * MIB, "");
	IS("memory is created without a context", cu.create(&memory, 2 * granule, &a, 0), CU_OK);
	IS("a size between multiples is refused", cu.create(&again, granule + 4096, &a, 0), CU_INVALID_VALUE);
	IS("more than the card has is refused", cu.create(&again, (size_t)1 << 42, &a, 0), CU_OUT_OF_MEMORY);
	int fd = export(memory);
	struct stat st = {0};
	fstat(fd, &st);
	char detail[64];
	snprintf(detail, sizeof(detail), "mode %#o, device %u:%u", st.st_mode, (unsigned)(st.st_rdev >> 8),
		 (unsigned)(st.st_rdev & 0xff));
	check("it is exported as an fd without a context", fd >= 0, detail);
	IS("the handle is released", cu.release(memory), CU_OK);
	memory = import(fd);
	cu_allocation found = {0};
	IS("the fd alone brings it back", cu.properties(&found, memory), CU_OK);
	check("and tells whose it is", found.location.type == CU_LOCATION_DEVICE && found.location.id == 0, "");
	cu.release(memory);
	close(fd);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	IS("another fd is not imported", cu.import_fd(&again, (void *)(intptr_t)null, CU_HANDLE_POSIX_FD), CU_UNKNOWN);
	close(null);
}

void check_mapping(void)
{
	cu_memory first = create(2 * MIB), second = create(4 * MIB);
	int fd = export(second);
	cu_pointer at = 0;
	raw_must(cu.reserve(&at, 6 * MIB, 0, 0, 0), "reserve");
	IS("mapping from an offset is refused", cu.map(at, 2 * MIB, 2 * MIB, second, 0), CU_NOT_SUPPORTED);
	IS("mapping more than there is is refused", cu.map(at, 6 * MIB, 0, second, 0), CU_NOT_SUPPORTED);
	cu_result less = cu.map(at, 2 * MIB, 0, second, 0);
	note("mapping less than there is", less);
	if (less == CU_OK)
		cu.unmap(at, 2 * MIB);
	IS("memory is mapped", cu.map(at, 2 * MIB, 0, first, 0), CU_OK);
	IS("other memory beside it", cu.map(at + 2 * MIB, 4 * MIB, 0, second, 0), CU_OK);
	IS("nothing where something is", cu.map(at, 2 * MIB, 0, first, 0), CU_INVALID_VALUE);
	IS("one change of access for both", allow(at, 6 * MIB, CU_ACCESS_READWRITE), CU_OK);
	cu.release(first);
	cu.release(second);
	put_word(at + 2 * MIB - 4, 1);
	put_word(at + 2 * MIB, 2);
	unsigned words[2] = {0, 0};
	IS("a copy across both", cu.download(words, at + 2 * MIB - 4, 8, NULL), CU_OK);
	cu.stream_wait(NULL);
	check("reads both, the handles being released", words[0] == 1 && words[1] == 2, "");
	IS("one is unmapped", cu.unmap(at + 2 * MIB, 4 * MIB), CU_OK);
	check("the other stays", word_at(at + 2 * MIB - 4) == 1, "");
	second = import(fd);
	IS("memory is mapped again at the same address", cu.map(at + 2 * MIB, 4 * MIB, 0, second, 0), CU_OK);
	raw_must(allow(at + 2 * MIB, 4 * MIB, CU_ACCESS_READ), "access");
	check("with its bytes", word_at(at + 2 * MIB) == 2, "");
	cu.release(second);
	IS("addresses in use are not given back", cu.unreserve(at, 6 * MIB), CU_INVALID_VALUE);
	IS("all is unmapped", cu.unmap(at, 2 * MIB), CU_OK);
	IS("all is unmapped", cu.unmap(at + 2 * MIB, 4 * MIB), CU_OK);
	IS("and then they are", cu.unreserve(at, 6 * MIB), CU_OK);
	close(fd);
}

static size_t free_now(void)
{
	size_t free_bytes = 0, total;
	raw_must(cu.memory_info(&free_bytes, &total), "cuMemGetInfo");
	return free_bytes;
}

void check_accounting(void)
{
	size_t before = free_now(), bytes = 64 * MIB;
	cu_memory memory = create(bytes);
	size_t with = free_now();
	char detail[64];
	snprintf(detail, sizeof(detail), "%zd bytes", (ssize_t)(before - with));
	check("creating takes what was asked for", before - with == bytes, detail);
	int fd = export(memory);
	cu.release(memory);
	check("an fd alone keeps it", before - free_now() == bytes, "");
	close(fd);
	for (int i = 0; i < 100 && free_now() != before; i++)
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	check("closing the last one frees it, to the byte, within a second", free_now() == before, "");
}

/* What windows count on (loader/device/gpu_window.c). */
void check_pinning(void)
{
	cu_stream streams[2];
	cu_memory memory = create(8 * MIB);
	cu_pointer at = map(memory, 8 * MIB, CU_ACCESS_READWRITE);
	char *host = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned wrong = 0;
	cu.release(memory);
	IS("ordinary memory is pinned", cu.host_pin(host, 4 * MIB + 4096, CU_HOST_PORTABLE), CU_OK);
	IS("so is what follows on it", cu.host_pin(host + 4 * MIB + 4096, 3 * MIB, CU_HOST_PORTABLE), CU_OK);
	IS("but not twice", cu.host_pin(host + 4 * MIB, 8192, CU_HOST_PORTABLE), CU_HOST_PINNED);
	raw_must(cu.stream_create(&streams[0], CU_STREAM_NOT_BLOCKING), "stream");
	raw_must(cu.stream_create(&streams[1], CU_STREAM_NOT_BLOCKING), "stream");
	for (size_t i = 0; i < 7 * MIB; i += 4)
		*(unsigned *)(void *)(host + i) = (unsigned)i * 2654435761u;
	IS("a copy from it begins", cu.upload(at, host, 4 * MIB + 4096, streams[0]), CU_OK);
	IS("beside one on another stream, from the middle of the other piece",
	   cu.upload(at + 4 * MIB + 4096, host + 4 * MIB + 4096, 2 * MIB, streams[1]), CU_OK);
	IS("a copy past the end of memory is refused", cu.upload(at + 8 * MIB - 4, host, 8, streams[0]),
	   CU_INVALID_VALUE);
	IS("each is waited for by itself", cu.stream_wait(streams[1]), CU_OK);
	IS("each is waited for by itself", cu.stream_wait(streams[0]), CU_OK);
	for (size_t i = 0; i < 6 * MIB; i += 4096)
		wrong += word_at(at + i) != (unsigned)i * 2654435761u;
	check("and the bytes are there", wrong == 0, "");
	cu.stream_destroy(streams[0]);
	cu.stream_destroy(streams[1]);
	IS("it is unpinned", cu.host_unpin(host), CU_OK);
	IS("it is unpinned", cu.host_unpin(host + 4 * MIB + 4096), CU_OK);
	IS("once", cu.host_unpin(host), CU_HOST_NOT_PINNED);
	munmap(host, 8 * MIB);
	unmap(at, 8 * MIB);
}
