/* What `doctor` asks the GPUs' drivers: which GPUs there are, and whether their memory can be shared. */
#include "loader/device/device.h"
#include "tools/findings.h"
#include "tools/text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Makes a segment, maps it as a reader would, and lets it go: what a load and an attach need. */
static int try_device(const struct device_info *gpu, struct ipcc_error *err)
{
	struct device_segment segment = {.fd = -1};
	struct device_range *range = NULL;
	uint64_t granularity = 0;
	int rc = gpu->device->granularity(gpu->name, &granularity, err);
	if (rc == 0)
		rc = gpu->device->create(gpu->name, "ipc-cache-doctor", granularity, &segment, err);
	if (rc == 0)
		rc = gpu->device->seal(&segment, err);
	struct device_request request = {.device = gpu->name, .fds = &segment.fd, .bytes = &granularity, .count = 1};
	if (rc == 0)
		rc = gpu->device->map(&request, &range, err);
	gpu->device->unmap(range);
	gpu->device->destroy(&segment);
	return rc;
}

/* Legacy IPC: a handle is all that one process can see of it. */
static bool try_keeping(const struct device_info *gpu)
{
	struct device_segment segment = {.fd = -1};
	uint64_t granularity = 0;
	const struct device *kept = device_find_kept(gpu->name, NULL);
	bool works = kept != NULL && kept->granularity(gpu->name, &granularity, NULL) == 0 &&
		     kept->create(gpu->name, "ipc-cache-doctor", granularity, &segment, NULL) == 0;
	if (works)
		kept->destroy(&segment);
	return works;
}

/* What can be done with a GPU's memory, or why nothing. */
static void check_sharing(struct findings *f, const struct device_info *gpu, const struct device_memory *memory)
{
	struct ipcc_error err;
	int rc = try_device(gpu, &err);
	bool kept = try_keeping(gpu);
	/* Only CUDA has run on a real card. */
	bool proven = strncmp(gpu->alias, "cuda:", 5) == 0;
	if (rc != 0 && !kept) {
		findings_add(f, FINDING_FAIL, "gpu", format_text("%s (%s): %s", gpu->alias, gpu->name, err.message),
			     format_text("the host device works without"));
		return;
	}
	const char *how = rc != 0 ? "by legacy IPC alone" : kept ? "as fds and by legacy IPC" : "as fds";
	findings_add(f, proven && rc == 0 ? FINDING_OK : FINDING_WARN, "gpu",
		     format_text("%s is %s, %s, %s of %s free; its memory can be shared %s", gpu->alias, gpu->name,
				 gpu->model, text_size(memory->free_bytes).text, text_size(memory->total_bytes).text,
				 how),
		     !proven   ? format_text("this vendor's code was tested with a stub library only, never on a card; "
					       "compare what you attach with: ipc-cache verify")
		     : rc != 0 ? format_text("%s", err.message)
			       : NULL);
}

static void check_gpu(struct findings *f, const struct device_info *gpu)
{
	struct device_memory memory;
	struct ipcc_error err;
	int rc = gpu->device->open(gpu->name, &err);
	if (rc != 0) {
		findings_add(f, FINDING_FAIL, "gpu", format_text("%s", err.message), NULL);
		return;
	}
	rc = gpu->device->memory(gpu->name, &memory, &err);
	if (rc == 0)
		check_sharing(f, gpu, &memory);
	else
		findings_add(f, FINDING_FAIL, "gpu", format_text("%s (%s): %s", gpu->alias, gpu->name, err.message),
			     format_text("the host device works without"));
	gpu->device->close(gpu->name);
}

void check_devices(struct findings *f)
{
	struct device_info *list;
	uint32_t count;
	struct ipcc_error why, err;
	if (device_list(&list, &count, &why, &err) != 0) {
		findings_add(f, FINDING_FAIL, "gpu", format_text("%s", err.message), NULL);
		return;
	}
	if (count == 0)
		findings_add(f, FINDING_OK, "gpu", format_text("none, models live on the host (%s)", why.message),
			     NULL);
	/* Room for the checks that follow. */
	for (uint32_t i = 0; i < count && f->count < FINDINGS_MAX - 8; i++)
		check_gpu(f, &list[i]);
	free(list);
}
