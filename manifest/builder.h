/*
 * Builds a manifest: add everything in any order, then builder_finish gives the draft's bytes. Tensors are sorted and
 * indexed there. A builder belongs to one thread at a time.
 *
 * What is added is copied. Errors in one call (a bad name, no memory) leave the builder usable.
 */
#ifndef IPCC_MANIFEST_BUILDER_H
#define IPCC_MANIFEST_BUILDER_H

#include "manifest/error.h"
#include "manifest/hash.h"
#include "manifest/views.h"

#include <stddef.h>

struct builder;

struct builder *builder_new(void); /* NULL: no memory */
void builder_free(struct builder *b);

int builder_set_name(struct builder *b, const char *name, struct ipcc_error *err);
int builder_add_field(struct builder *b, const char *name, const char *value, struct ipcc_error *err);
/* Segments are numbered in the order in which they are added. `blocks` holds block_count hashes (copied), or NULL. */
int builder_add_segment(struct builder *b, const struct ipcc_segment *segment, const struct hash128 *blocks,
			struct ipcc_error *err);
/* `alias_of` of an alias counts tensors in the order of adding. */
int builder_add_tensor(struct builder *b, const struct ipcc_tensor *tensor, struct ipcc_error *err);
int builder_add_source(struct builder *b, const struct ipcc_source *source, struct ipcc_error *err);
int builder_add_attribute(struct builder *b, const struct ipcc_attribute *attribute, struct ipcc_error *err);

/* The finished draft in a malloc'ed, 64-byte aligned buffer that the caller frees. The result passes
 * manifest_validate(): what would not is an error here. The builder can be freed, not used further. */
int builder_finish(struct builder *b, void **bytes, size_t *length, struct ipcc_error *err);

#endif
