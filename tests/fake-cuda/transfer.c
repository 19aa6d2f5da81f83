/* Streams, transfers, pinned memory, and the one kernel that there is. */
#include "tests/fake-cuda/fake.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct op {
	enum { OP_UPLOAD, OP_DOWNLOAD } kind;
	cu_pointer device;
	void *host;
	size_t bytes;
};

struct cu_stream_state {
	int gpu;
	unsigned count, room;
	struct op *ops; /* not done yet */
};

struct pinned {
	struct pinned *next;
	char *at;
	size_t bytes;
	bool owned;
};
static struct pinned *pinned;

/* Does anything of [address, address + bytes) lie in pinned memory? */
static bool touches_pinned(const void *address, size_t bytes)
{
	for (struct pinned *p = pinned; p != NULL; p = p->next)
		if ((const char *)address < p->at + p->bytes && (const char *)address + bytes > p->at)
			return true;
	return false;
}

bool fake_is_pinned(const void *address)
{
	return touches_pinned(address, 1);
}

struct pass {
	unsigned char *host;
	int byte;
};

static void put(void *context, unsigned char *at, size_t bytes)
{
	struct pass *pass = context;
	memcpy(at, pass->host, bytes);
	pass->host += bytes;
}

static void get(void *context, unsigned char *at, size_t bytes)
{
	struct pass *pass = context;
	memcpy(pass->host, at, bytes);
	pass->host += bytes;
}

static void set(void *context, unsigned char *at, size_t bytes)
{
	memset(at, ((struct pass *)context)->byte, bytes);
}

static void nothing(void *context, unsigned char *at, size_t bytes)
{
	(void)context;
	(void)at;
	(void)bytes;
}

static cu_result perform(int gpu, const struct op *op)
{
	struct pass pass = {.host = op->host};
	return op->kind == OP_UPLOAD ? fake_each(gpu, op->device, op->bytes, CU_ACCESS_READWRITE, put, &pass)
				     : fake_each(gpu, op->device, op->bytes, CU_ACCESS_READ, get, &pass);
}

static cu_result drain(cu_stream stream)
{
	cu_result first = CU_OK;
	for (unsigned i = 0; stream != NULL && i < stream->count; i++) {
		cu_result result = perform(stream->gpu, &stream->ops[i]);
		first = first != CU_OK ? first : result;
	}
	if (stream != NULL)
		stream->count = 0;
	return first;
}

/* What the host can see of a transfer happens when the stream is waited for, if the memory is pinned. */
static cu_result submit(struct fake_context *c, cu_stream stream, const struct op *op)
{
	int access = op->kind == OP_UPLOAD ? CU_ACCESS_READWRITE : CU_ACCESS_READ;
	cu_result result = fake_each(c->gpu, op->device, op->bytes, access, nothing, NULL);
	if (result != CU_OK || stream == NULL || !fake_is_pinned(op->host)) {
		cu_result drained = result == CU_OK ? drain(stream) : result;
		return drained == CU_OK ? perform(c->gpu, op) : drained;
	}
	if (stream->count == stream->room) {
		unsigned room = stream->room == 0 ? 16 : 2 * stream->room;
		struct op *ops = realloc(stream->ops, room * sizeof(*ops));
		if (ops == NULL)
			return CU_OUT_OF_MEMORY;
		stream->ops = ops;
		stream->room = room;
	}
	stream->ops[stream->count++] = *op;
	return CU_OK;
}

#define CONTEXT()                                                                                                      \
	cu_result result;                                                                                              \
	struct fake_context *c = fake_current(&result);                                                                \
	if (c == NULL)                                                                                                 \
	RETURN(result)

API cu_result cuStreamCreate(cu_stream *stream, unsigned flags)
{
	ENTER();
	CONTEXT();
	(void)flags;
	struct cu_stream_state *made = calloc(1, sizeof(*made));
	if (made == NULL)
		RETURN(CU_OUT_OF_MEMORY);
	made->gpu = c->gpu;
	fake_live[LIVE_STREAMS]++;
	*stream = made;
	RETURN(CU_OK);
}

API cu_result cuStreamDestroy_v2(cu_stream stream)
{
	ENTER();
	drain(stream);
	free(stream->ops);
	free(stream);
	fake_live[LIVE_STREAMS]--;
	RETURN(CU_OK);
}

API cu_result cuStreamSynchronize(cu_stream stream)
{
	ENTER();
	CONTEXT();
	RETURN(drain(stream));
}

API cu_result cuCtxSynchronize(void)
{
	ENTER();
	CONTEXT();
	RETURN(CU_OK);
}

API cu_result cuMemcpyHtoDAsync_v2(cu_pointer to, const void *from, size_t bytes, cu_stream stream)
{
	ENTER();
	CONTEXT();
	RETURN(submit(c, stream, &(struct op){OP_UPLOAD, to, (void *)from, bytes}));
}

API cu_result cuMemcpyDtoHAsync_v2(void *to, cu_pointer from, size_t bytes, cu_stream stream)
{
	ENTER();
	CONTEXT();
	RETURN(submit(c, stream, &(struct op){OP_DOWNLOAD, from, to, bytes}));
}

API cu_result cuMemsetD8Async(cu_pointer address, unsigned char byte, size_t bytes, cu_stream stream)
{
	ENTER();
	CONTEXT();
	(void)stream;
	struct pass pass = {.byte = byte};
	RETURN(fake_each(c->gpu, address, bytes, CU_ACCESS_READWRITE, set, &pass));
}

API cu_result cuMemcpyDtoDAsync_v2(cu_pointer to, cu_pointer from, size_t bytes, cu_stream stream)
{
	ENTER();
	CONTEXT();
	(void)stream;
	unsigned char *copy = malloc(bytes);
	struct pass in = {.host = copy}, out = {.host = copy};
	if (copy == NULL)
		RETURN(CU_OUT_OF_MEMORY);
	result = fake_each(c->gpu, from, bytes, CU_ACCESS_READ, get, &in);
	if (result == CU_OK)
		result = fake_each(c->gpu, to, bytes, CU_ACCESS_READWRITE, put, &out);
	free(copy);
	RETURN(result);
}

static cu_result pin(void *address, size_t bytes, bool owned)
{
	struct pinned *made = malloc(sizeof(*made));
	if (made == NULL)
		return CU_OUT_OF_MEMORY;
	*made = (struct pinned){pinned, address, bytes, owned};
	pinned = made;
	fake_live[LIVE_PINNED]++;
	return CU_OK;
}

static cu_result unpin(void *address, bool owned)
{
	for (struct pinned **place = &pinned; *place != NULL; place = &(*place)->next) {
		struct pinned *p = *place;
		if (p->at != address || p->owned != owned)
			continue;
		*place = p->next;
		if (owned)
			free(p->at);
		free(p);
		fake_live[LIVE_PINNED]--;
		return CU_OK;
	}
	return owned ? CU_INVALID_VALUE : CU_HOST_NOT_PINNED;
}

/* Is there memory at every page of it? */
static bool is_mapped(void *address, size_t bytes)
{
	unsigned char resident;
	uintptr_t page = 4096, at = (uintptr_t)address / page * page;
	for (; at < (uintptr_t)address + bytes; at += page)
		if (mincore((void *)at, page, &resident) != 0)
			return false;
	return true;
}

API cu_result cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
	ENTER();
	CONTEXT();
	(void)flags;
	void *made;
	if (posix_memalign(&made, 4096, bytes) != 0)
		RETURN(CU_OUT_OF_MEMORY);
	result = pin(made, bytes, true);
	if (result == CU_OK)
		*address = made;
	else
		free(made);
	RETURN(result);
}

API cu_result cuMemFreeHost(void *address)
{
	ENTER();
	RETURN(unpin(address, true));
}

API cu_result cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
	ENTER();
	CONTEXT();
	if (address == NULL || bytes == 0 || (flags & ~0xfu) != 0 || !is_mapped(address, bytes))
		RETURN(CU_INVALID_VALUE);
	RETURN(touches_pinned(address, bytes) ? CU_HOST_PINNED : pin(address, bytes, false));
}

API cu_result cuMemHostUnregister(void *address)
{
	ENTER();
	RETURN(unpin(address, false));
}

/* ---- kernels: every module has one, which stores `value` at `address` ---- */

API cu_result cuModuleLoadData(void **module, const void *image)
{
	ENTER();
	CONTEXT();
	if (image == NULL)
		RETURN(CU_INVALID_VALUE);
	*module = (void *)image;
	RETURN(CU_OK);
}

API cu_result cuModuleUnload(void *module)
{
	ENTER();
	(void)module;
	RETURN(CU_OK);
}

API cu_result cuModuleGetFunction(void **function, void *module, const char *name)
{
	ENTER();
	*function = module;
	RETURN(strcmp(name, "store") == 0 ? CU_OK : 500);
}

API cu_result cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
			     unsigned bz, unsigned shared, cu_stream stream, void **parameters, void **extra)
{
	ENTER();
	CONTEXT();
	(void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream,
		(void)extra;
	struct pass pass = {.host = parameters[1]};
	/* The launch succeeds; what goes wrong is told afterwards, for ever. */
	if (fake_each(c->gpu, *(cu_pointer *)parameters[0], 4, CU_ACCESS_READWRITE, put, &pass) != CU_OK)
		c->broken = CU_ILLEGAL_ADDRESS;
	RETURN(CU_OK);
}
