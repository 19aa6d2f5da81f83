/* The manifest that the tests of manifest/ start from: small, with every section filled and every kind of tensor. */
#ifndef IPCC_TESTS_MANIFEST_SAMPLE_H
#define IPCC_TESTS_MANIFEST_SAMPLE_H

#include "manifest/builder.h"
#include "manifest/reader.h"

struct sample {
	uint8_t *bytes; /* 64-byte aligned; free with sample_fini */
	size_t length;
	struct manifest m; /* over bytes */
};

/* Segments of the sample. */
enum {
	SAMPLE_HASHED,	 /* "host", 5 MiB, two blocks */
	SAMPLE_LEGACY,	 /* a GPU's, with a handle */
	SAMPLE_UNHASHED, /* a GPU's */
	SAMPLE_SEGMENTS
};

void sample_init(struct sample *sample);
void sample_fini(struct sample *sample);
/* Writes the right checksum for the bytes as they are. */
void sample_reseal(void *bytes, size_t length);
/* The entry to write to, and its native form's number by name. */
void *sample_entry(struct sample *sample, enum manifest_section_id section, uint32_t i);
uint32_t sample_tensor_number(const struct sample *sample, const char *name);

/* A dense tensor at `offset` of segment 0. */
struct ipcc_tensor dense_tensor(const char *name, uint32_t dtype, uint32_t rank, const uint64_t *shape,
				uint64_t offset);
/* A builder with one unhashed host segment of `bytes` bytes. */
struct builder *builder_with_segment(uint64_t bytes);

/* Reads all that a manifest offers and touches every byte that it hands out. Nonsense may be refused, never crash. */
uint64_t walk_manifest(const struct manifest *m);

/* The sample's tensors in their final order. */
enum sample_tensor {
	NORM,	    /* F32 [8] at 0 */
	EMBED,	    /* BF16 [16, 8] at 256, 256 bytes */
	TIED,	    /* an alias of EMBED, BF16 [64] at 256, 128 bytes */
	UNNAMED,    /* I64 [] at 512 */
	STRIDED,    /* F16 [4, 4] at 1024, 44 bytes */
	TRANSPOSED, /* U8 [3, 5] at 0 of segment 1 */
	FP4,	    /* F4 [2, 3, 4] at 16 of segment 1 */
	ACCENT,	    /* BOOL of rank 8 at 64 of segment 2 */
	EMPTY,	    /* F64 [0, 7] at 4096, the end of segment 2 */
};

/* The manifest, sealed again, is not valid, and the message says `expected` and where. */
void assert_refused(struct sample *s, const char *expected);

#endif
