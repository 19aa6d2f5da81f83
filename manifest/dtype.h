/* What is known of the element types (enum ipcc_dtype): names, sizes, and the extent of tensors of them. */
#ifndef IPCC_MANIFEST_DTYPE_H
#define IPCC_MANIFEST_DTYPE_H

#include "manifest/views.h"

#include <stdbool.h>
#include <stdint.h>

/* The safetensors name ("BF16"), or NULL for a number that is no dtype. */
const char *dtype_name(uint32_t dtype);
/* The dtype of that name, or 0. */
uint32_t dtype_from_name(const char *name);
/* Bits of one element (4, 6, 8, ... 64), or 0. */
uint32_t dtype_bits(uint32_t dtype);
/* What an element's address must be a multiple of, in bytes; 1 for sub-byte types. */
uint32_t dtype_alignment(uint32_t dtype);

/* Bytes of a dense tensor. False when the element count or the bits overflow 64 bits, or the last byte is not full
 * (the rules of the reference parser, in its order of multiplication). */
bool dtype_dense_bytes(uint32_t dtype, const uint64_t *shape, uint32_t rank, uint64_t *bytes);

/* The strides, in elements, of a dense row-major tensor; all 0 when it has no element (a product that overflows is no
 * error then). The caller knows that the element count does not overflow: dtype_dense_bytes said so. */
void dtype_dense_strides(const uint64_t *shape, uint32_t rank, uint64_t *strides);

/* Bits from the first element to the end of the last one of a strided view, 0 when it has no element. False when that
 * overflows 64 bits or `dtype` is none. */
bool dtype_view_bits(uint32_t dtype, const uint64_t *shape, const uint64_t *strides, uint32_t rank, uint64_t *bits);

#endif
