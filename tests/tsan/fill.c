/*
 * A fill with four threads, for ThreadSanitizer: a program of its own, since Criterion and clang's TSan do not go
 * together. Writes a checkpoint of 32 MiB below $TMPDIR (or /tmp), fills it, compares; exit status 0 when all is well.
 */
#include "loader/fill.h"
#include "tests/unit/loader_sink.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TENSORS	     64
#define TENSOR_BYTES 524309 /* odd, so that most blocks are copied in pieces */

static int write_checkpoint(const char *path)
{
	char header[TENSORS * 96 + 2];
	uint64_t length = 1;
	FILE *file = fopen(path, "wb");

	if (file == NULL)
		return -1;
	header[0] = '{';
	for (unsigned i = 0; i < TENSORS; i++)
		length +=
			(uint64_t)snprintf(header + length, sizeof(header) - length,
					   "%s\"t%u\":{\"dtype\":\"U8\",\"shape\":[%u],\"data_offsets\":[%u,%u]}",
					   i > 0 ? "," : "", i, TENSOR_BYTES, i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES);
	header[length++] = '}';
	for (unsigned i = 0; i < 8; i++)
		fputc((int)(length >> (8 * i) & 0xff), file);
	fwrite(header, 1, length, file);
	for (unsigned i = 0; i < TENSORS * TENSOR_BYTES; i++)
		putc_unlocked((int)(i * 2654435761u >> 9 & 0xff), file);
	return fclose(file);
}

static void progress(void *context, uint64_t done, uint64_t total)
{
	*(uint64_t *)context = total - done; /* not atomic: one thread at a time is promised */
}

static int check(const struct plan *plan, void *const *segments)
{
	for (unsigned i = 0; i < TENSORS; i++) {
		const uint8_t *bytes = (const uint8_t *)segments[plan->places[i].segment] + plan->places[i].offset;
		for (unsigned k = 0; k < TENSOR_BYTES; k++) {
			if (bytes[k] != ((i * TENSOR_BYTES + k) * 2654435761u >> 9 & 0xff))
				return -1;
		}
	}
	return 0;
}

static int fill(const struct checkpoint *cp, const struct plan *plan, enum fill_io io, struct ipcc_error *err)
{
	struct fill_result result;
	uint64_t left = 1;
	atomic_bool cancel = false;
	const struct fill_options options = {.threads = 4,
					     .io = io,
					     .no_ring = io == FILL_DIRECT,
					     .progress = progress,
					     .context = &left,
					     .cancel = &cancel};
	void **segments = calloc(plan->segment_count, sizeof(*segments));

	for (uint32_t i = 0; i < plan->segment_count; i++)
		segments[i] = calloc(1, plan->segment_bytes[i]);
	const struct sink sink = memory_sink(segments);
	int r = fill_run(cp, plan, &sink, &options, &result, err);
	if (r == 0) {
		if (check(plan, segments) < 0 || left != 0)
			r = IPCC_FAILED;
		fill_result_fini(&result);
	}
	for (uint32_t i = 0; i < plan->segment_count; i++)
		free(segments[i]);
	free(segments);
	return r;
}

int main(void)
{
	const char *tmp = getenv("TMPDIR");
	struct ipcc_error err = {0};
	struct checkpoint cp = {0};
	struct plan plan = {0};
	char path[512];

	snprintf(path, sizeof(path), "%s/ipcc-tsan-fill-%d.safetensors", tmp != NULL ? tmp : "/tmp", (int)getpid());
	int r = write_checkpoint(path) == 0 ? 0 : IPCC_FAILED;
	if (r == 0)
		r = checkpoint_open(&cp, path, &err);
	if (r == 0)
		r = plan_init_checkpoint(&plan, &cp, NULL, 8 << 20, &err);
	/* Direct without io_uring: ThreadSanitizer does not see what the kernel writes. */
	for (unsigned round = 0; r == 0 && round < 4; round++)
		r = fill(&cp, &plan, (enum fill_io)round, &err);
	if (r != 0)
		fprintf(stderr, "fill: %d %s\n", r, err.message);
	plan_fini(&plan);
	checkpoint_fini(&cp);
	unlink(path);
	return r != 0;
}
