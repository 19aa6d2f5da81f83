/*
 * Reads a manifest in place, without allocation. manifest_init checks what every access relies on (header, section
 * bounds, optionally the checksum); each entry's own bounds are checked as it is read, so that a reader of unvalidated
 * bytes gets an error, never a fault. Full validation is validate.h's.
 *
 * A `struct manifest` borrows the bytes; it is immutable after manifest_init and may be shared between threads.
 */
#ifndef IPCC_MANIFEST_READER_H
#define IPCC_MANIFEST_READER_H

#include "manifest/error.h"
#include "manifest/format.h"
#include "manifest/key.h"
#include "manifest/views.h"

#include <stdbool.h>

struct manifest {
	const uint8_t *bytes;
	uint64_t total_bytes;
	const struct manifest_header *header;
	const uint8_t *sections[SECTION_COUNT];
	uint32_t strides[SECTION_COUNT];
	uint32_t counts[SECTION_COUNT];
};

/* Over `bytes` bytes at `base` (8-byte aligned; must outlive `m`): magic, version, flags, sizes, sections. The checksum
 * only if `verify`. IPCC_INVALID names field and offset. */
int manifest_init(struct manifest *m, const void *base, uint64_t bytes, bool verify, struct ipcc_error *err);

/* Maps a manifest that came from a broker: checks the memfd (memfd_check), maps it read-only and calls manifest_init
 * with the checksum. The fd stays the caller's. Release with manifest_unmap. */
int manifest_map(struct manifest *m, int fd, struct ipcc_error *err);
void manifest_unmap(struct manifest *m);

/* A string of the manifest, NUL-terminated, or NULL when it lies outside the strings section. */
const char *manifest_text(const struct manifest *m, struct manifest_string s);
/* The model's display name, "" when out of bounds. */
const char *manifest_name(const struct manifest *m);

/* How many fields, segments, tensors, ... */
static inline uint32_t manifest_count(const struct manifest *m, enum manifest_section_id section)
{
	return m->counts[section];
}
/* The raw entry `i`, or NULL when i is out of range. */
const void *manifest_entry(const struct manifest *m, enum manifest_section_id section, uint32_t i);

/* Entry `i` in native types. IPCC_INVALID, naming the entry, when i or anything in it is out of bounds. */
int manifest_tensor(const struct manifest *m, uint32_t i, struct ipcc_tensor *out, struct ipcc_error *err);
int manifest_segment(const struct manifest *m, uint32_t i, struct ipcc_segment *out, struct ipcc_error *err);
int manifest_source(const struct manifest *m, uint32_t i, struct ipcc_source *out, struct ipcc_error *err);
int manifest_attribute(const struct manifest *m, uint32_t i, struct ipcc_attribute *out, struct ipcc_error *err);
int manifest_field(const struct manifest *m, uint32_t i, struct ipcc_field *out, struct ipcc_error *err);
/* The block hashes of segment `i`: an array of its block_count hashes; NULL when there are none or out of bounds. */
const struct hash128 *manifest_blocks(const struct manifest *m, uint32_t i);

/* The number of the tensor of that name through the index, or -1. Nanoseconds, any number of tensors. */
int64_t manifest_find(const struct manifest *m, const char *name);

/* The key, copied out; free with key_fini. */
int manifest_key(const struct manifest *m, struct key *key, struct ipcc_error *err);

/* The checksum of the bytes, with the field itself taken as zero: 0 or IPCC_NO_MEMORY. */
int manifest_checksum(const void *base, uint64_t bytes, uint64_t *checksum, struct ipcc_error *err);

#endif
