/* Addresses: reserved, and mapped with a page protection behind them. */
#include "tests/fake-cuda/fake.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

struct fake_mapping *fake_mappings;

struct reservation {
	struct reservation *next;
	cu_pointer base;
	size_t bytes;
};
static struct reservation *reservations;

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

struct fake_mapping *fake_mapping_at(cu_pointer address)
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
			struct fake_mapping *m = fake_mapping_at(address + done);
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

cu_result fake_reserve(cu_pointer *address, size_t bytes)
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

cu_result fake_unreserve(cu_pointer address, size_t bytes)
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
	RETURN(fake_reserve(address, bytes));
}

API cu_result cuMemAddressFree(cu_pointer address, size_t bytes)
{
	ENTER();
	RETURN(fake_unreserve(address, bytes));
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
