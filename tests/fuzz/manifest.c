/*
 * libFuzzer over the manifest: the checksum is made right, so that what is behind it is reached. Unvalidated bytes must
 * not make the reader fault; validated ones must be readable in full.
 */
#include "manifest/validate.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds)
{
	if (!holds)
		abort();
}

static void read_all(const struct manifest *m, bool validated)
{
	struct ipcc_tensor tensor;
	struct ipcc_segment segment;
	struct ipcc_source source;
	struct ipcc_attribute attribute;
	struct key key;
	for (uint32_t i = 0; i < manifest_count(m, SECTION_TENSORS) && i < 1000; i++) {
		int rc = manifest_tensor(m, i, &tensor, NULL);
		check(rc == IPCC_OK || !validated);
		if (rc == IPCC_OK)
			check(manifest_find(m, tensor.name) == i || !validated);
	}
	for (uint32_t i = 0; i < manifest_count(m, SECTION_SEGMENTS) && i < 1000; i++)
		check(manifest_segment(m, i, &segment, NULL) == IPCC_OK || !validated);
	for (uint32_t i = 0; i < manifest_count(m, SECTION_SOURCES) && i < 1000; i++)
		check(manifest_source(m, i, &source, NULL) == IPCC_OK || !validated);
	for (uint32_t i = 0; i < manifest_count(m, SECTION_ATTRIBUTES) && i < 1000; i++)
		check(manifest_attribute(m, i, &attribute, NULL) == IPCC_OK || !validated);
	if (manifest_key(m, &key, NULL) == IPCC_OK)
		key_fini(&key);
	else
		check(!validated);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct manifest m;
	void *bytes;
	if (size < sizeof(struct manifest_header) || posix_memalign(&bytes, MANIFEST_ALIGNMENT, size) != 0)
		return 0;
	memcpy(bytes, data, size);
	uint64_t checksum = 0;
	manifest_checksum(bytes, size, &checksum, NULL);
	((struct manifest_header *)bytes)->checksum = le64_make(checksum);
	if (manifest_init(&m, bytes, size, true, NULL) == IPCC_OK)
		read_all(&m, manifest_validate(bytes, size, NULL) == IPCC_OK);
	free(bytes);
	return 0;
}
