/* The device table: which entry serves a device, and what users may call one. See device.h. */
#include "loader/device/device.h"

#include "loader/device/backends.h"
#include "loader/device/gpu.h"
#include "manifest/bytes.h"
#include "manifest/fail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A GPU's UUID is told from others by this many characters behind the prefix, or more. */
#define LEAST_UUID_CHARS 4

static const struct vendor *const vendors[] = {&vendor_cuda, &vendor_hip, &vendor_maca};

const struct device *device_find(const char *device, struct ipcc_error *err)
{
	if (strcmp(device, DEVICE_HOST) == 0)
		return &device_host;
	if (gpu_vendor(device) != NULL)
		return &device_gpu;
	fail(err, IPCC_NOT_FOUND,
	     "device '%.80s' is not served; this build serves: " DEVICE_HOST ", and GPUs by their UUID", device);
	return NULL;
}

const struct device *device_find_kept(const char *device, struct ipcc_error *err)
{
	const struct device *found = device_find(device, err);
	if (found == &device_gpu)
		return &device_gpu_kept;
	if (found != NULL)
		fail(err, IPCC_REFUSED, "host memory needs no keeper: the broker holds it; a keeper is for GPUs");
	return NULL;
}

static void describe(const struct gpu *gpu, struct device_info *info)
{
	*info = (struct device_info){.device = &device_gpu};
	memcpy(info->name, gpu->name, sizeof(info->name));
	snprintf(info->alias, sizeof(info->alias), "%s:%d", gpu->vendor->kind, gpu->ordinal);
	memcpy(info->model, gpu->model, sizeof(info->model));
}

/* `only`: of this vendor; NULL: of all. */
static int list_of(const struct vendor *only, struct device_info **list, uint32_t *count, struct ipcc_error *why,
		   struct ipcc_error *err)
{
	struct device_info *made = calloc(array_length(vendors) * GPU_MAX, sizeof(*made));
	char reasons[sizeof(why->message)] = "";
	size_t length = 0;
	uint32_t made_count = 0;
	if (made == NULL)
		return fail(err, IPCC_NO_MEMORY, "no memory for the list of GPUs");
	for (size_t i = 0; i < array_length(vendors); i++) {
		struct gpu *gpus;
		uint32_t found = 0;
		struct ipcc_error reason;
		if (only != NULL && only != vendors[i])
			continue;
		if (gpu_all(vendors[i], &gpus, &found, &reason) != 0 && length < sizeof(reasons) - 2)
			length += (size_t)snprintf(reasons + length, sizeof(reasons) - length, "%s%s",
						   length == 0 ? "" : "; ", reason.message);
		for (uint32_t k = 0; k < found; k++)
			describe(&gpus[k], &made[made_count++]);
	}
	if (why != NULL)
		fail(why, IPCC_NOT_FOUND, "%s", reasons);
	*list = made;
	*count = made_count;
	return 0;
}

int device_list(struct device_info **list, uint32_t *count, struct ipcc_error *why, struct ipcc_error *err)
{
	return list_of(NULL, list, count, why, err);
}

int device_alias(const char *device, char alias[DEVICE_ALIAS_BYTES], struct ipcc_error *err)
{
	struct device_info *list;
	struct ipcc_error why;
	uint32_t count;
	/* Of its vendor alone: looking for the libraries of others takes longer than all the rest. */
	int rc = list_of(gpu_vendor(device), &list, &count, &why, err);
	if (rc != 0)
		return rc;
	rc = IPCC_NOT_FOUND;
	for (uint32_t i = 0; rc != 0 && i < count; i++) {
		if (strcmp(list[i].name, device) == 0) {
			memcpy(alias, list[i].alias, DEVICE_ALIAS_BYTES);
			rc = 0;
		}
	}
	free(list);
	return rc == 0 ? 0
		       : fail(err, rc, "this process does not see %.80s%s%.300s", device, count == 0 ? ": " : "",
			      count == 0 ? why.message : "");
}

/* Does `text` mean this GPU? */
static bool means(const char *text, const struct device_info *info)
{
	size_t length = strlen(text);
	const char *dash = strchr(info->name, '-');
	if (strcmp(text, info->alias) == 0)
		return true;
	/* "cuda" is the first one. */
	if (strncmp(text, info->alias, length) == 0 && strcmp(info->alias + length, ":0") == 0)
		return true;
	return dash != NULL && length >= (size_t)(dash + 1 - info->name) + LEAST_UUID_CHARS &&
	       strncasecmp(text, info->name, length) == 0;
}

/* The GPU with the most free memory, or the host. */
static int choose(const struct device_info *list, uint32_t count, char name[DEVICE_NAME_BYTES], struct ipcc_error *err)
{
	const struct device_info *best = NULL;
	uint64_t best_free = 0;
	for (uint32_t i = 0; i < count; i++) {
		struct device_memory memory = {0};
		/* One alone needs no comparison, which would make a context. */
		int rc = count == 1 ? 0 : list[i].device->memory(list[i].name, &memory, err);
		if (rc != 0)
			return rc;
		if (best == NULL || memory.free_bytes > best_free) {
			best = &list[i];
			best_free = memory.free_bytes;
		}
	}
	snprintf(name, DEVICE_NAME_BYTES, "%s", best == NULL ? DEVICE_HOST : best->name);
	return 0;
}

static int not_found(const char *text, const struct device_info *list, uint32_t count, const struct ipcc_error *why,
		     struct ipcc_error *err)
{
	char seen[600] = DEVICE_HOST;
	size_t length = strlen(seen);
	for (uint32_t i = 0; i < count && length < sizeof(seen) - 100; i++)
		length += (size_t)snprintf(seen + length, sizeof(seen) - length, ", %s (%s)", list[i].alias,
					   list[i].name);
	return fail(err, IPCC_NOT_FOUND, "there is no device '%.80s'; there is: %s%s%.300s%s", text, seen,
		    count == 0 ? " (no GPU: " : "", count == 0 ? why->message : "", count == 0 ? ")" : "");
}

static int match(const char *text, const struct device_info *list, uint32_t count, const struct ipcc_error *why,
		 char name[DEVICE_NAME_BYTES], struct ipcc_error *err)
{
	const struct device_info *found = NULL;
	for (uint32_t i = 0; i < count; i++) {
		if (!means(text, &list[i]))
			continue;
		if (found != NULL)
			return fail(err, IPCC_USAGE, "'%.80s' may be %s or %s; give more of it", text, found->name,
				    list[i].name);
		found = &list[i];
	}
	if (found == NULL)
		return not_found(text, list, count, why, err);
	memcpy(name, found->name, DEVICE_NAME_BYTES);
	return 0;
}

/* Whose GPU this can only be, by the kind or a name's prefix; NULL: anybody's. */
static const struct vendor *vendor_meant(const char *text)
{
	for (size_t i = 0; i < array_length(vendors); i++)
		if (strncmp(text, vendors[i]->kind, strlen(vendors[i]->kind)) == 0)
			return vendors[i];
	return gpu_vendor(text);
}

static int resolve_among(const struct vendor *only, const char *text, char name[DEVICE_NAME_BYTES],
			 struct ipcc_error *err)
{
	struct device_info *list;
	struct ipcc_error why;
	uint32_t count;
	int rc = list_of(only, &list, &count, &why, err);
	if (rc != 0)
		return rc;
	rc = strcmp(text, "auto") == 0 ? choose(list, count, name, err) : match(text, list, count, &why, name, err);
	free(list);
	return rc;
}

int device_resolve(const char *text, char name[DEVICE_NAME_BYTES], struct ipcc_error *err)
{
	const struct vendor *only = vendor_meant(text);
	if (strcmp(text, DEVICE_HOST) == 0) {
		strcpy(name, DEVICE_HOST);
		return 0;
	}
	/* The libraries of other vendors are looked for only when that does not answer. */
	if (only != NULL && resolve_among(only, text, name, NULL) == 0)
		return 0;
	return resolve_among(NULL, text, name, err);
}
