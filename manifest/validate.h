/*
 * Full validation of a manifest, in slices: each validator_step does a bounded amount of work (well under a
 * millisecond), so that a single-threaded broker can check a hostile draft without making anybody wait.
 */
#ifndef IPCC_MANIFEST_VALIDATE_H
#define IPCC_MANIFEST_VALIDATE_H

#include "manifest/error.h"
#include "manifest/reader.h"

struct validator;

/* Over bytes that stay unchanged until validator_free. NULL: no memory. */
struct validator *validator_new(const void *bytes, uint64_t length);
void validator_free(struct validator *v);

enum validator_result {
	VALIDATOR_ERROR = -1, /* err says what and where; no further step */
	VALIDATOR_DONE = 0,
	VALIDATOR_MORE = 1,
};
enum validator_result validator_step(struct validator *v, struct ipcc_error *err);

/* After VALIDATOR_DONE: the manifest, valid as long as the validator. */
const struct manifest *validator_manifest(const struct validator *v);

/* All steps at once: 0 or IPCC_INVALID. */
int manifest_validate(const void *bytes, uint64_t length, struct ipcc_error *err);

#endif
