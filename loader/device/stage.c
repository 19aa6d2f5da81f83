/* See stage.h. */
#include "loader/device/stage.h"

#include "bpf/probes.h"
#include "manifest/fail.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Every stream costs memory of the GPU (half a MiB on an H200), which stays the process's when the stream is gone: slots share
 * a few. Who waits for a slot waits for what others of its stream have queued, too. */
#define STREAMS 4

struct slot {
	void *buffer;	  /* NULL: not made yet */
	cu_stream stream; /* one of the stage's */
	cu_pointer to;	  /* where the buffer's content belongs, */
	uint64_t filled;  /* and how much of it waits for its transfer to begin */
	bool taken;
	bool pending; /* something was queued on the stream and not waited for ... */
	bool upload;  /* ... or gathered: an upload */
};

struct stage {
	struct gpu *gpu;
	pthread_mutex_t lock;
	pthread_cond_t given;
	unsigned next;
	unsigned uploads; /* slots with `upload` */
	cu_result failed; /* a transfer's first error: what was uploaded cannot be relied on */
	cu_stream streams[STREAMS];
	struct slot slots[STAGE_SLOTS];
};

int stage_of(struct gpu *gpu, struct stage **stage, struct ipcc_error *err)
{
	pthread_mutex_lock(&gpu->lock);
	if (gpu->stage == NULL) {
		gpu->stage = calloc(1, sizeof(*gpu->stage));
		if (gpu->stage != NULL) {
			gpu->stage->gpu = gpu;
			pthread_mutex_init(&gpu->stage->lock, NULL);
			pthread_cond_init(&gpu->stage->given, NULL);
		}
	}
	struct stage *found = gpu->stage;
	pthread_mutex_unlock(&gpu->lock);
	if (found == NULL)
		return fail(err, IPCC_NO_MEMORY, "%s: no memory for transfers", gpu->name);
	*stage = found;
	return 0;
}

void stage_free(struct stage *stage)
{
	const struct driver *driver = stage->gpu->driver;
	for (unsigned i = 0; i < STAGE_SLOTS; i++) {
		struct slot *slot = &stage->slots[i];
		if (slot->pending)
			driver->stream_wait(slot->stream);
		if (slot->buffer != NULL)
			driver->host_free(slot->buffer);
	}
	for (unsigned i = 0; i < STREAMS; i++)
		if (stage->streams[i] != NULL)
			driver->stream_destroy(stage->streams[i]);
	pthread_mutex_destroy(&stage->lock);
	pthread_cond_destroy(&stage->given);
	free(stage);
}

static int failure(const struct stage *stage, cu_result result, struct ipcc_error *err)
{
	return gpu_fail(stage->gpu, result, err, "a transfer failed");
}

/* Waits for what was queued on a taken slot; the first error stays. */
static cu_result settle(struct stage *stage, struct slot *slot)
{
	cu_result r = slot->pending ? stage->gpu->driver->stream_wait(slot->stream) : CU_OK;
	if (slot->pending && slot->upload)
		PROBE_UPLOAD_COMPLETED(slot, r);
	slot->pending = false;
	pthread_mutex_lock(&stage->lock);
	if (slot->upload)
		stage->uploads--;
	slot->upload = false;
	if (stage->failed == CU_OK)
		stage->failed = r;
	r = stage->failed;
	pthread_mutex_unlock(&stage->lock);
	return r;
}

static void give(struct stage *stage, struct slot *slot)
{
	pthread_mutex_lock(&stage->lock);
	slot->taken = false;
	pthread_cond_broadcast(&stage->given);
	pthread_mutex_unlock(&stage->lock);
}

/* In turn, so that the slot that is taken is the one whose transfer began longest ago; one that still gathers only when
 * there is no other. */
static struct slot *next_free(struct stage *stage)
{
	struct slot *found = NULL;
	for (unsigned i = 0; i < STAGE_SLOTS && (found == NULL || found->filled > 0); i++) {
		struct slot *slot = &stage->slots[(stage->next + i) % STAGE_SLOTS];
		if (!slot->taken && (found == NULL || slot->filled == 0))
			found = slot;
	}
	if (found != NULL) {
		stage->next = (unsigned)(found - stage->slots + 1) % STAGE_SLOTS;
		found->taken = true;
	}
	return found;
}

/* The slot whose content `to` follows on, with room for more. */
static struct slot *gathering(struct stage *stage, cu_pointer to)
{
	struct slot *found = NULL;
	pthread_mutex_lock(&stage->lock);
	for (unsigned i = 0; i < STAGE_SLOTS && found == NULL; i++) {
		struct slot *slot = &stage->slots[i];
		if (!slot->taken && slot->filled > 0 && slot->filled < STAGE_BYTES && slot->to + slot->filled == to)
			found = slot;
	}
	if (found != NULL)
		found->taken = true;
	pthread_mutex_unlock(&stage->lock);
	return found;
}

/* Begins the transfer of what a taken slot has gathered. */
static void launch(struct stage *stage, struct slot *slot)
{
	if (slot->filled == 0)
		return;
	PROBE_UPLOAD_SUBMITTED(slot, slot->to, slot->filled);
	cu_result r = stage->gpu->driver->upload(slot->to, slot->buffer, slot->filled, slot->stream);
	if (r != CU_OK)
		PROBE_UPLOAD_COMPLETED(slot, r);
	slot->filled = 0;
	slot->pending = r == CU_OK;
	pthread_mutex_lock(&stage->lock);
	if (stage->failed == CU_OK)
		stage->failed = r;
	pthread_mutex_unlock(&stage->lock);
}

static cu_result make(struct stage *stage, struct slot *slot)
{
	const struct driver *driver = stage->gpu->driver;
	cu_stream *stream = &stage->streams[(slot - stage->slots) % STREAMS];
	cu_result r = CU_OK;
	pthread_mutex_lock(&stage->lock);
	if (*stream == NULL)
		r = driver->stream_create(stream, CU_STREAM_NOT_BLOCKING);
	if (r == CU_OK)
		slot->stream = *stream;
	pthread_mutex_unlock(&stage->lock);
	if (r == CU_OK && slot->buffer == NULL)
		r = driver->host_allocate(&slot->buffer, STAGE_BYTES, CU_HOST_PORTABLE);
	return r;
}

/* A slot whose buffer is free; waits for one. */
static int take(struct stage *stage, struct slot **taken, struct ipcc_error *err)
{
	struct slot *slot;
	pthread_mutex_lock(&stage->lock);
	while ((slot = next_free(stage)) == NULL)
		pthread_cond_wait(&stage->given, &stage->lock);
	pthread_mutex_unlock(&stage->lock);
	launch(stage, slot);
	cu_result r = settle(stage, slot);
	if (r != CU_OK) {
		give(stage, slot);
		return failure(stage, r, err);
	}
	r = make(stage, slot);
	if (r != CU_OK) {
		give(stage, slot);
		return gpu_fail(stage->gpu, r, err, "no pinned buffer of %" PRIu64 " bytes for transfers", STAGE_BYTES);
	}
	*taken = slot;
	return 0;
}

/* The first error of any transfer so far. */
static cu_result note_upload(struct stage *stage, struct slot *slot)
{
	pthread_mutex_lock(&stage->lock);
	if (!slot->upload)
		stage->uploads++;
	slot->upload = true;
	cu_result failed = stage->failed;
	pthread_mutex_unlock(&stage->lock);
	return failed;
}

int stage_upload(struct stage *stage, cu_pointer to, const void *from, uint64_t bytes, struct ipcc_error *err)
{
	cu_result failed = CU_OK;
	for (uint64_t done = 0; done < bytes && failed == CU_OK;) {
		struct slot *slot = gathering(stage, to + done);
		int rc = slot != NULL ? 0 : take(stage, &slot, err);
		if (rc != 0)
			return rc;
		if (slot->filled == 0)
			slot->to = to + done;
		uint64_t room = STAGE_BYTES - slot->filled, part = bytes - done < room ? bytes - done : room;
		memcpy((char *)slot->buffer + slot->filled, (const char *)from + done, part);
		slot->filled += part;
		done += part;
		if (slot->filled == STAGE_BYTES)
			launch(stage, slot);
		failed = note_upload(stage, slot);
		give(stage, slot);
	}
	return failed == CU_OK ? 0 : failure(stage, failed, err);
}

int stage_download(struct stage *stage, void *to, cu_pointer from, uint64_t bytes, struct ipcc_error *err)
{
	for (uint64_t done = 0; done < bytes;) {
		uint64_t part = bytes - done < STAGE_BYTES ? bytes - done : STAGE_BYTES;
		struct slot *slot;
		int rc = take(stage, &slot, err);
		if (rc != 0)
			return rc;
		cu_result r = stage->gpu->driver->download(slot->buffer, from + done, part, slot->stream);
		slot->pending = r == CU_OK;
		if (r == CU_OK)
			r = settle(stage, slot);
		if (r == CU_OK)
			memcpy((char *)to + done, slot->buffer, part);
		give(stage, slot);
		if (r != CU_OK)
			return failure(stage, r, err);
		done += part;
	}
	return 0;
}

int stage_zero(struct stage *stage, cu_pointer to, uint64_t bytes, struct ipcc_error *err)
{
	struct slot *slot;
	int rc = take(stage, &slot, err);
	if (rc != 0)
		return rc;
	cu_result r = stage->gpu->driver->fill(to, 0, bytes, slot->stream);
	slot->pending = r == CU_OK;
	if (r == CU_OK)
		r = settle(stage, slot);
	give(stage, slot);
	return r == CU_OK ? 0 : failure(stage, r, err);
}

int stage_flush(struct stage *stage, struct ipcc_error *err)
{
	pthread_mutex_lock(&stage->lock);
	bool idle = stage->uploads == 0;
	cu_result r = stage->failed;
	pthread_mutex_unlock(&stage->lock);
	for (unsigned i = 0; !idle && i < STAGE_SLOTS; i++) {
		struct slot *slot = &stage->slots[i];
		pthread_mutex_lock(&stage->lock);
		while (slot->taken)
			pthread_cond_wait(&stage->given, &stage->lock);
		slot->taken = true;
		pthread_mutex_unlock(&stage->lock);
		launch(stage, slot);
		r = settle(stage, slot);
		give(stage, slot);
	}
	return r == CU_OK ? 0 : failure(stage, r, err);
}
