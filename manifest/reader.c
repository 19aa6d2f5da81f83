/*
 * The reader: nothing from the bytes is used before it was compared with the bounds that manifest_init has stored in
 * native form. After manifest_init every section lies inside the bytes, its entries are aligned and at least as long as
 * the structures of format.h; what an entry points to (strings, blocks, data, another section's entry) is checked at
 * each access, because nobody else has done so when the bytes come from a file or an untrusted peer.
 */
#include "manifest/reader.h"

#include "manifest/fd.h"
#include "manifest/locate.h"

#include <errno.h>
#include <sys/mman.h>

/* What entry_bytes may be. Exact: the section is an array that is indexed as one. */
static const struct {
	uint32_t bytes;
	bool exact;
} entry_rules[SECTION_COUNT] = {
	[SECTION_FIELDS] = {sizeof(struct manifest_field), false},
	[SECTION_SEGMENTS] = {sizeof(struct manifest_segment), false},
	[SECTION_TENSORS] = {sizeof(struct manifest_tensor), false},
	[SECTION_INDEX] = {sizeof(le32), true},
	[SECTION_SOURCES] = {sizeof(struct manifest_source), false},
	[SECTION_BLOCKS] = {sizeof(struct manifest_block), true},
	[SECTION_ATTRIBUTES] = {sizeof(struct manifest_attribute), false},
	[SECTION_STRINGS] = {1, true},
	[SECTION_DATA] = {1, true},
};

int manifest_checksum(const void *base, uint64_t bytes, uint64_t *checksum, struct ipcc_error *err)
{
	static const uint8_t zeros[sizeof(le64)];
	const size_t before = offsetof(struct manifest_header, checksum), after = before + sizeof(zeros);
	struct checksum *sum = checksum_new();

	if (sum == NULL)
		return fail(err, IPCC_NO_MEMORY, "manifest: no memory for its checksum");
	checksum_add(sum, base, before);
	checksum_add(sum, zeros, sizeof(zeros));
	checksum_add(sum, (const uint8_t *)base + after, bytes - after);
	*checksum = checksum_value(sum);
	checksum_free(sum);
	return 0;
}

static int check_header(const struct manifest_header *h, uint64_t bytes, struct ipcc_error *err)
{
	if (memcmp(h->magic, MANIFEST_MAGIC, sizeof(h->magic)) != 0)
		return manifest_refuse(h, IN_HEADER(h, magic), err, "not a manifest");
	if (le16_get(h->major) != MANIFEST_MAJOR)
		return manifest_refuse(h, IN_HEADER(h, major), err,
				       "version %u.%u; this program reads version %u, use the one that wrote it",
				       le16_get(h->major), le16_get(h->minor), MANIFEST_MAJOR);
	if (le32_get(h->incompatible) != 0)
		return manifest_refuse(h, IN_HEADER(h, incompatible), err,
				       "unknown flags 0x%x; it needs a newer program", le32_get(h->incompatible));
	if (le64_get(h->total_bytes) != bytes)
		return manifest_refuse(h, IN_HEADER(h, total_bytes), err, "%llu, but there are %llu bytes",
				       (unsigned long long)le64_get(h->total_bytes), (unsigned long long)bytes);
	uint32_t header_bytes = le32_get(h->header_bytes);
	if (header_bytes < sizeof(*h) || header_bytes % 8 != 0 || header_bytes > bytes)
		return manifest_refuse(h, IN_HEADER(h, header_bytes), err,
				       "%u is not a multiple of 8 between %zu and the total", header_bytes, sizeof(*h));
	return 0;
}

static int init_section(struct manifest *m, uint32_t i, struct ipcc_error *err)
{
	const struct manifest_section *s = &m->header->sections[i];
	const char *name = manifest_section_name(i);
	uint64_t offset = le64_get(s->offset);
	uint32_t stride = le32_get(s->entry_bytes), count = le32_get(s->count);
	struct place place = IN_ARRAY(NULL, 0, m->header, sections, i);

	if (entry_rules[i].exact ? stride != entry_rules[i].bytes : stride < entry_rules[i].bytes || stride % 8 != 0)
		return manifest_refuse(m->bytes, place, err, "%s: entry_bytes %u does not fit entries of %u bytes",
				       name, stride, entry_rules[i].bytes);
	if (offset % MANIFEST_ALIGNMENT != 0 || offset < le32_get(m->header->header_bytes))
		return manifest_refuse(m->bytes, place, err,
				       "%s: offset %llu is not a multiple of %d behind the header", name,
				       (unsigned long long)offset, MANIFEST_ALIGNMENT);
	if (!range_inside(offset, (uint64_t)stride * count, m->total_bytes))
		return manifest_refuse(m->bytes, place, err,
				       "%s: %u entries of %u bytes at %llu are not inside the %llu bytes", name, count,
				       stride, (unsigned long long)offset, (unsigned long long)m->total_bytes);
	if (i == SECTION_INDEX && (count & (count - 1)) != 0)
		return manifest_refuse(m->bytes, place, err, "%s: count %u is not a power of two", name, count);
	m->sections[i] = m->bytes + offset;
	m->strides[i] = stride;
	m->counts[i] = count;
	return 0;
}

int manifest_init(struct manifest *m, const void *base, uint64_t bytes, bool verify, struct ipcc_error *err)
{
	struct manifest made = {.bytes = base, .total_bytes = bytes, .header = base};

	if ((uintptr_t)base % 8 != 0)
		return fail(err, IPCC_USAGE, "manifest: the buffer is not aligned to 8 bytes");
	if (bytes < sizeof(struct manifest_header) || bytes > MANIFEST_MAX_BYTES)
		return fail(err, IPCC_INVALID,
			    "manifest: header.total_bytes at offset %zu: %llu bytes are not between %zu and %llu",
			    offsetof(struct manifest_header, total_bytes), (unsigned long long)bytes,
			    sizeof(struct manifest_header), (unsigned long long)MANIFEST_MAX_BYTES);
	int code = check_header(made.header, bytes, err);
	uint64_t checksum = 0;
	if (code == 0 && verify)
		code = manifest_checksum(base, bytes, &checksum, err);
	if (code == 0 && verify && checksum != le64_get(made.header->checksum))
		code = manifest_refuse(base, IN_HEADER(made.header, checksum), err,
				       "the bytes do not match it: they are damaged");
	for (uint32_t i = 0; code == 0 && i < SECTION_COUNT; i++)
		code = init_section(&made, i, err);
	if (code == 0)
		*m = made;
	return code;
}

int manifest_map(struct manifest *m, int fd, struct ipcc_error *err)
{
	struct memfd_facts facts;
	int code = memfd_check(fd, "the manifest", &facts, err);
	if (code != 0)
		return code;
	if (facts.bytes < sizeof(struct manifest_header) || facts.bytes > MANIFEST_MAX_BYTES)
		return fail(err, IPCC_INVALID, "manifest: a memfd of %llu bytes is no manifest",
			    (unsigned long long)facts.bytes);
	/* Private: before Linux 6.7 a sealed memfd cannot be mapped shared through a writable fd, not even for reading. A
	 * private mapping that is only read has the same pages. */
	void *base = mmap(NULL, facts.bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
	if (base == MAP_FAILED)
		return fail_errno(err, errno, "manifest: mmap of %llu bytes", (unsigned long long)facts.bytes);
	code = manifest_init(m, base, facts.bytes, true, err);
	if (code != 0)
		munmap(base, facts.bytes);
	return code;
}

void manifest_unmap(struct manifest *m)
{
	if (m->bytes != NULL)
		munmap((void *)m->bytes, m->total_bytes);
	*m = (struct manifest){0};
}

const char *manifest_text(const struct manifest *m, struct manifest_string s)
{
	uint64_t offset = le32_get(s.offset), bytes = le32_get(s.bytes);
	const char *strings = (const char *)m->sections[SECTION_STRINGS];

	if (!range_inside(offset, bytes + 1, m->counts[SECTION_STRINGS]) || strings[offset + bytes] != '\0')
		return NULL;
	return strings + offset;
}

const char *manifest_name(const struct manifest *m)
{
	const char *name = manifest_text(m, m->header->name);
	return name != NULL ? name : "";
}

const void *manifest_entry(const struct manifest *m, enum manifest_section_id section, uint32_t i)
{
	if (i >= m->counts[section])
		return NULL;
	return m->sections[section] + (uint64_t)m->strides[section] * i;
}
