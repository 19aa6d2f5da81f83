/* See residency.h. */
#include "loader/residency.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Linux 6.5; younger than the C library's headers may be. */
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif
struct range_argument {
	uint64_t offset;
	uint64_t bytes;
};
struct cache_facts {
	uint64_t cached, dirty, writeback, evicted, recently_evicted; /* pages */
};

/* Enough to tell a block that was read ahead in part from one that is there. */
#define SAMPLES 16
/* So many are missing, and none was there: nothing is. */
#define MISSES 3

static bool ask(int fd, uint64_t offset, uint64_t bytes, unsigned *percent)
{
	struct range_argument range = {.offset = offset, .bytes = bytes};
	struct cache_facts facts;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t pages = (offset + bytes + page - 1) / page - offset / page;

	if (syscall(SYS_cachestat, fd, &range, &facts, 0) != 0)
		return false;
	*percent = facts.cached >= pages ? 100 : (unsigned)(facts.cached * 100 / pages);
	return true;
}

/* Blocks that this thread has had read from disks. */
static long blocks_read(void)
{
	struct rusage usage;
	return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_inblock : 0;
}

static unsigned sample(int fd, uint64_t offset, uint64_t bytes)
{
	unsigned found = 0;
	long before = blocks_read();
	uint8_t byte;

	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	for (unsigned i = 0; i < SAMPLES && (found > 0 || i < MISSES); i++) {
		struct iovec one = {.iov_base = &byte, .iov_len = 1};
		/* Not in order: the first few shall be anywhere. */
		uint64_t at = offset + (bytes - 1) / (SAMPLES - 1) * (i * 5 % SAMPLES);
		bool is_there = preadv2(fd, &one, 1, (off_t)at, RWF_NOWAIT) == 1;
		/* The kernel starts to read what is missing, and a fast disk is done before it looks. */
		long after = blocks_read();
		found += is_there && after == before;
		before = after;
	}
	posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL);
	return found * 100 / SAMPLES;
}

unsigned residency_percent(int fd, uint64_t offset, uint64_t bytes, bool sampled)
{
	unsigned percent = 0;

	if (bytes == 0)
		return 100;
	if (!sampled && ask(fd, offset, bytes, &percent))
		return percent;
	return sample(fd, offset, bytes);
}
