/*
 * Huge pages of shared memory: asked for where the kernel's settings can grant them, and counted as they were obtained
 * (asking succeeds without effect where they are off).
 */
#ifndef IPCC_DEVICE_HUGE_H
#define IPCC_DEVICE_HUGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the processor maps by one entry, with base pages of 4 KiB; where it is another size, only alignment is lost. */
#define HUGE_BYTES ((uint64_t)2 << 20)

/* Asks for huge pages in a fresh shared mapping. False when the kernel gives none to shared memory, or the mapping is too
 * small for one. */
bool huge_advise(void *address, uint64_t bytes);

/* Copies into such a mapping: allocates its pages, then copies, while the caches hold what the kernel has just zeroed (stores
 * around the caches were measured: a fifth slower). 0, -ENOMEM, or -EFAULT. Ranges of several threads may share a page. */
int huge_copy(void *to, const void *from, uint64_t bytes);

/* How many bytes of the mapping that begins at `address` are mapped by huge pages. */
uint64_t huge_bytes_of(const void *address);

#endif
