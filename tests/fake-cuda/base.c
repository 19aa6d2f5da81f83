/* Settings, injected failures, devices and contexts. */
#include "tests/fake-cuda/fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
struct fake_context fake_contexts[FAKE_MAX_GPUS];
int fake_visible[FAKE_MAX_GPUS], fake_visible_count;
int fake_live[8];

static bool initialised;
static __thread struct fake_context *stack[32];
static __thread int depth;

const char *fake_setting(const char *name, const char *otherwise)
{
	const char *value = getenv(name);
	return value != NULL && *value != '\0' ? value : otherwise;
}

static void append(const char *setting, const char *line)
{
	const char *path = fake_setting(setting, NULL);
	int fd = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (fd < 0)
		return;
	dprintf(fd, "%d %s\n", getpid(), line);
	close(fd);
}

/* Does this call fail? FAKE_CUDA_FAIL lists at most eight. */
static cu_result injected(const char *function)
{
	static unsigned calls[8];
	const char *at = fake_setting("FAKE_CUDA_FAIL", "");
	cu_result result = CU_OK;
	for (unsigned i = 0; i < 8 && *at != '\0'; i++) {
		char name[64];
		unsigned number = 0;
		int code = 0, length = 0;
		if (sscanf(at, "%63[^:]:%u:%d%n", name, &number, &code, &length) != 3)
			break;
		at += length + (at[length] == ',');
		if (strcmp(name, function) == 0 && (++calls[i] == number || number == 0))
			result = code;
	}
	if (result != CU_OK)
		append("FAKE_CUDA_REACHED", function);
	return result;
}

cu_result fake_enter(const char *function)
{
	pthread_mutex_lock(&fake_lock);
	append("FAKE_CUDA_LOG", function);
	cu_result result = injected(function);
	bool early = strcmp(function, "cuInit") == 0 || strcmp(function, "cuDriverGetVersion") == 0 ||
		     strcmp(function, "cuGetErrorName") == 0;
	if (result == CU_OK && !initialised && !early)
		result = CU_NOT_INITIALIZED;
	if (result != CU_OK)
		pthread_mutex_unlock(&fake_lock);
	return result;
}

cu_result fake_leave(cu_result result)
{
	pthread_mutex_unlock(&fake_lock);
	return result;
}

static int gpu_count(void)
{
	int count = atoi(fake_setting("FAKE_CUDA_GPUS", "1"));
	return count > FAKE_MAX_GPUS ? FAKE_MAX_GPUS : count;
}

static void uuid_of(int gpu, char bytes[16])
{
	static const char pattern[16] = {(char)0xfa, 0x4e, 0x0c, 0x0d, 0x00, 0x01, 0x40, 0x00,
					 (char)0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
	memcpy(bytes, pattern, 16);
	bytes[15] = (char)(gpu + 1);
}

/* "GPU-fa4e0c0d-0001-..." or its beginning. */
static int gpu_by_uuid(const char *text, size_t length)
{
	for (int gpu = 0; gpu < gpu_count(); gpu++) {
		char bytes[16], name[64];
		int at = sprintf(name, "GPU-");
		uuid_of(gpu, bytes);
		for (int i = 0; i < 16; i++)
			at += sprintf(name + at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
				      (unsigned char)bytes[i]);
		if (length > 4 && strncmp(text, name, length) == 0)
			return gpu;
	}
	return -1;
}

/* As the real one: the list ends at the first entry that makes no sense. */
static void find_visible(void)
{
	const char *at = getenv("CUDA_VISIBLE_DEVICES");
	fake_visible_count = 0;
	if (at == NULL) {
		for (int i = 0; i < gpu_count(); i++)
			fake_visible[fake_visible_count++] = i;
		return;
	}
	while (*at != '\0' && fake_visible_count < FAKE_MAX_GPUS) {
		size_t length = strcspn(at, ",");
		char *end;
		long number = strtol(at, &end, 10);
		int gpu = end == at + length && length > 0 && number >= 0 && number < gpu_count()
				  ? (int)number
				  : gpu_by_uuid(at, length);
		if (gpu < 0)
			return;
		fake_visible[fake_visible_count++] = gpu;
		at += length + (at[length] == ',');
	}
}

API cu_result cuInit(unsigned flags)
{
	ENTER();
	if (flags != 0)
		RETURN(CU_INVALID_VALUE);
	find_visible();
	if (fake_visible_count == 0)
		RETURN(CU_NO_DEVICE);
	for (int i = 0; i < FAKE_MAX_GPUS; i++)
		fake_contexts[i].gpu = i;
	initialised = true;
	RETURN(CU_OK);
}

API cu_result cuDriverGetVersion(int *version)
{
	ENTER();
	*version = atoi(fake_setting("FAKE_CUDA_VERSION", "13000"));
	RETURN(CU_OK);
}

API cu_result cuGetErrorName(cu_result result, const char **name)
{
	static const struct {
		cu_result result;
		const char *name;
	} names[] = {{CU_OK, "CUDA_SUCCESS"},
		     {CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
		     {CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
		     {CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
		     {CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
		     {CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
		     {CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
		     {CU_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
		     {CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
		     {CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
		     {CU_HOST_PINNED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
		     {CU_HOST_NOT_PINNED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
		     {CU_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED"},
		     {CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
		     {CU_UNKNOWN, "CUDA_ERROR_UNKNOWN"}};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (names[i].result == result) {
			*name = names[i].name;
			return CU_OK;
		}
	}
	*name = NULL;
	return CU_INVALID_VALUE;
}

API cu_result cuDeviceGetCount(int *count)
{
	ENTER();
	*count = fake_visible_count;
	RETURN(CU_OK);
}

API cu_result cuDeviceGet(cu_device *device, int ordinal)
{
	ENTER();
	if (ordinal < 0 || ordinal >= fake_visible_count)
		RETURN(CU_INVALID_DEVICE);
	*device = ordinal;
	RETURN(CU_OK);
}

#define CHECK_DEVICE(device)                                                                                           \
	if ((device) < 0 || (device) >= fake_visible_count)                                                            \
	RETURN(CU_INVALID_DEVICE)

API cu_result cuDeviceGetName(char *name, int bytes, cu_device device)
{
	ENTER();
	CHECK_DEVICE(device);
	snprintf(name, (size_t)bytes, "Fake GPU");
	RETURN(CU_OK);
}

API cu_result cuDeviceGetUuid_v2(cu_uuid *uuid, cu_device device)
{
	ENTER();
	CHECK_DEVICE(device);
	uuid_of(fake_visible[device], uuid->bytes);
	RETURN(CU_OK);
}

API cu_result cuDeviceGetAttribute(int *value, cu_attribute attribute, cu_device device)
{
	ENTER();
	CHECK_DEVICE(device);
	*value = (attribute == CU_ATTRIBUTE_VMM || attribute == CU_ATTRIBUTE_POSIX_FD) &&
		 fake_setting("FAKE_CUDA_NO_FDS", NULL) == NULL;
	RETURN(CU_OK);
}

API cu_result cuDeviceCanAccessPeer(int *can, cu_device device, cu_device peer)
{
	ENTER();
	CHECK_DEVICE(device);
	CHECK_DEVICE(peer);
	*can = device != peer && fake_setting("FAKE_CUDA_NO_PEERS", NULL) == NULL;
	RETURN(CU_OK);
}

API cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device)
{
	ENTER();
	CHECK_DEVICE(device);
	struct fake_context *c = &fake_contexts[fake_visible[device]];
	if (c->retained++ == 0)
		c->broken = CU_OK;
	fake_live[LIVE_CONTEXTS]++;
	*context = (cu_context)c;
	RETURN(CU_OK);
}

API cu_result cuDevicePrimaryCtxRelease_v2(cu_device device)
{
	ENTER();
	CHECK_DEVICE(device);
	struct fake_context *c = &fake_contexts[fake_visible[device]];
	if (c->retained == 0)
		RETURN(CU_INVALID_CONTEXT);
	c->retained--;
	fake_live[LIVE_CONTEXTS]--;
	RETURN(CU_OK);
}

API cu_result cuCtxPushCurrent_v2(cu_context context)
{
	ENTER();
	struct fake_context *c = (struct fake_context *)context;
	if (c == NULL || c->retained == 0 || depth == 32)
		RETURN(CU_INVALID_CONTEXT);
	stack[depth++] = c;
	RETURN(CU_OK);
}

API cu_result cuCtxPopCurrent_v2(cu_context *context)
{
	ENTER();
	if (depth == 0)
		RETURN(CU_INVALID_CONTEXT);
	*context = (cu_context)stack[--depth];
	RETURN(CU_OK);
}

API cu_result cuCtxGetCurrent(cu_context *context)
{
	ENTER();
	*context = (cu_context)(depth > 0 ? stack[depth - 1] : NULL);
	RETURN(CU_OK);
}

API cu_result cuCtxSetCurrent(cu_context context)
{
	ENTER();
	if (depth > 0)
		depth--;
	if (context != NULL)
		stack[depth++] = (struct fake_context *)context;
	RETURN(CU_OK);
}

struct fake_context *fake_current(cu_result *result)
{
	struct fake_context *c = depth > 0 ? stack[depth - 1] : NULL;
	*result = c == NULL || c->retained == 0 ? CU_INVALID_CONTEXT : c->broken;
	return *result == CU_OK ? c : NULL;
}

__attribute__((destructor)) static void report_leaks(void)
{
	static const char *const kinds[] = {"handles", "mappings", "reservations", "contexts",
					    "streams", "pinned",   "allocations"};
	char line[64];
	for (int i = 0; i < 7; i++) {
		if (fake_live[i] == 0)
			continue;
		snprintf(line, sizeof(line), "%s %d", kinds[i], fake_live[i]);
		append("FAKE_CUDA_LEAKS", line);
	}
}
