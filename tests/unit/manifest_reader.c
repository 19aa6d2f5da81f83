/* Opening and mapping manifests, and reading beside what the validator would allow. */
#include "manifest/reader.h"
#include "manifest/fd.h"
#include "manifest/validate.h"
#include "tests/unit/leaks.h"
#include "tests/unit/manifest_sample.h"

#include <criterion/criterion.h>
#include <stdlib.h>

TestSuite(manifest_reader, .init = leaks_before, .fini = leaks_after);

static int sealed_copy(const void *bytes, size_t length)
{
	int fd = memfd_new("manifest", length);
	cr_assert_geq(fd, 0);
	cr_assert_eq(fd_write_exact(fd, bytes, length, 0), 0);
	cr_assert_eq(memfd_seal(fd), 0);
	return fd;
}

static void assert_not_mapped(int fd, const char *reason)
{
	struct manifest m = {.total_bytes = 4711};
	struct ipcc_error err = {0};

	cr_assert_neq(manifest_map(&m, fd, &err), 0);
	cr_assert_not_null(strstr(err.message, reason), "%s", err.message);
	cr_assert_eq(m.total_bytes, 4711, "an output is untouched on failure");
}

Test(manifest_reader, a_sealed_manifest_is_mapped_and_read_in_place)
{
	struct sample s;
	struct manifest m;

	sample_init(&s);
	cleanup_fd int fd = sealed_copy(s.bytes, s.length);
	cr_assert_eq(manifest_map(&m, fd, NULL), 0);
	cr_assert_eq(m.total_bytes, s.length);
	cr_assert_eq(manifest_find(&m, "model.norm"), 0);
	cr_assert_eq(walk_manifest(&m), walk_manifest(&s.m));
	manifest_unmap(&m);
	cr_assert_null(m.bytes);
	manifest_unmap(&m);
	sample_fini(&s);
}

Test(manifest_reader, what_is_no_sealed_manifest_is_not_mapped)
{
	struct sample s;

	sample_init(&s);
	cleanup_fd int unsealed = memfd_new("manifest", s.length);
	assert_not_mapped(unsealed, "seals");
	cleanup_fd int empty = sealed_copy("", 0);
	assert_not_mapped(empty, "0 bytes");
	cleanup_fd int small = sealed_copy(s.bytes, 255);
	assert_not_mapped(small, "255 bytes");
	cleanup_free void *huge = calloc(1, MANIFEST_MAX_BYTES + 1);
	cleanup_fd int too_large = sealed_copy(huge, MANIFEST_MAX_BYTES + 1);
	assert_not_mapped(too_large, "67108865 bytes");
	s.bytes[s.length - 1] ^= 1;
	cleanup_fd int damaged = sealed_copy(s.bytes, s.length);
	assert_not_mapped(damaged, "header.checksum at offset 24");
	sample_fini(&s);
}

Test(manifest_reader, a_buffer_at_an_odd_address_is_the_callers_mistake)
{
	struct sample s;
	struct manifest m;

	sample_init(&s);
	cleanup_free uint8_t *odd = malloc(s.length + 4);
	memcpy(odd + 4, s.bytes, s.length);
	cr_assert_eq(manifest_init(&m, odd + 4, s.length, true, NULL), IPCC_USAGE);
	sample_fini(&s);
}

Test(manifest_reader, without_verify_the_checksum_does_not_matter)
{
	struct sample s;
	struct manifest m;

	sample_init(&s);
	s.bytes[s.length - 1] ^= 1;
	cr_assert_eq(manifest_init(&m, s.bytes, s.length, false, NULL), 0);
	cr_assert_eq(manifest_init(&m, s.bytes, s.length, true, NULL), IPCC_INVALID);
	sample_fini(&s);
}

/* Moves what is behind `at` by `by` bytes to the back. */
static void make_room(struct sample *s, size_t at, size_t by)
{
	uint8_t *grown = aligned_alloc(64, align_up(s->length + by, 64));
	cr_assert_not_null(grown);
	memcpy(grown, s->bytes, at);
	memset(grown + at, 0xee, by);
	memcpy(grown + at + by, s->bytes + at, s->length - at);
	free(s->bytes);
	s->bytes = grown;
	s->length += by;
}

Test(manifest_reader, what_a_newer_minor_version_appends_is_ignored)
{
	const size_t more = 64; /* to each tensor, and to the header */
	struct ipcc_error err = {0};
	struct sample s;

	sample_init(&s);
	uint64_t sum = walk_manifest(&s.m);
	uint64_t tensors = le64_get(s.m.header->sections[SECTION_TENSORS].offset);
	uint32_t count = manifest_count(&s.m, SECTION_TENSORS);
	for (uint32_t i = count; i > 0; i--)
		make_room(&s, tensors + i * sizeof(struct manifest_tensor), more);
	make_room(&s, sizeof(struct manifest_header), more);

	struct manifest_header *h = (struct manifest_header *)s.bytes;
	for (int i = 0; i < SECTION_COUNT; i++) {
		uint64_t moved = more + (i > SECTION_TENSORS ? count * more : 0);
		h->sections[i].offset = le64_make(le64_get(h->sections[i].offset) + moved);
	}
	h->sections[SECTION_TENSORS].entry_bytes = le32_make(sizeof(struct manifest_tensor) + more);
	h->minor = le16_make(7);
	h->compatible = le32_make(0xf0);
	h->header_bytes = le32_make(sizeof(*h) + more);
	h->total_bytes = le64_make(s.length);
	sample_reseal(s.bytes, s.length);
	cr_assert_eq(manifest_validate(s.bytes, s.length, &err), 0, "%s", err.message);
	cr_assert_eq(manifest_init(&s.m, s.bytes, s.length, true, NULL), 0);
	cr_assert_eq(walk_manifest(&s.m), sum);
	sample_fini(&s);
}

Test(manifest_reader, a_name_out_of_bounds_reads_as_none)
{
	struct sample s;

	sample_init(&s);
	struct manifest_header *h = (struct manifest_header *)s.bytes;
	h->name.offset = le32_make(UINT32_MAX);
	cr_assert_str_eq(manifest_name(&s.m), "");
	h->name = (struct manifest_string){le32_make(0), le32_make(UINT32_MAX)};
	cr_assert_str_eq(manifest_name(&s.m), "");
	h->name = (struct manifest_string){le32_make(0), le32_make(1)};
	cr_assert_str_eq(manifest_name(&s.m), "", "no NUL behind it");
	sample_fini(&s);
}

Test(manifest_reader, a_key_of_too_many_fields_is_refused)
{
	struct sample s;
	struct key key;

	sample_init(&s);
	s.m.counts[SECTION_FIELDS] = MANIFEST_MAX_FIELDS + 1;
	cr_assert_eq(manifest_key(&s.m, &key, NULL), IPCC_INVALID);
	sample_fini(&s);
}
