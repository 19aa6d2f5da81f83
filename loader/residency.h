/*
 * How much of a range of a file is in the page cache.
 *
 * cachestat(2) tells the owner and whoever may write the file; for others it fails, and mincore(2) would lie to them (all
 * resident). They are told by a sample: preadv2(RWF_NOWAIT) of single bytes, which gives what is there and does not wait. What is not
 * there it starts to read, though, a page with POSIX_FADV_RANDOM: so the sample ends with the first few that are missing.
 */
#ifndef IPCC_LOADER_RESIDENCY_H
#define IPCC_LOADER_RESIDENCY_H

#include <stdbool.h>
#include <stdint.h>

/* The resident part of [offset, offset + bytes) of the file, 0 to 100 percent; 0 where it cannot be told. `sampled`: as if
 * cachestat were refused, for tests. Thread-safe. */
unsigned residency_percent(int fd, uint64_t offset, uint64_t bytes, bool sampled);

#endif
