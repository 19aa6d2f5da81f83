/* See range.h. */
#include "loader/device/range.h"

#include "manifest/bytes.h"
#include "manifest/fail.h"

#include <inttypes.h>
#include <stdlib.h>

void *device_range_new(size_t size, const struct device *device, const struct device_request *request,
		       struct ipcc_error *err)
{
	/* The arrays lie behind the struct, which has pointers in it, so that they are aligned. */
	size_t count = request->count;
	struct device_range *made = calloc(1, size + count * (sizeof(*made->addresses) + sizeof(*made->bytes)));
	if (made == NULL) {
		fail(err, IPCC_NO_MEMORY, "no memory to map %u segments", request->count);
		return NULL;
	}
	made->device = device;
	made->addresses = (void **)((char *)made + size);
	made->bytes = (uint64_t *)(made->addresses + count);
	for (size_t i = 0; i < count; i++)
		made->bytes[i] = request->bytes[i];
	return made;
}

int device_range_check(const struct device_range *range, uint32_t segment, uint64_t offset, uint64_t bytes,
		       struct ipcc_error *err)
{
	if (segment < range->count && range_inside(offset, bytes, range->bytes[segment]))
		return 0;
	return fail(err, IPCC_USAGE, "%" PRIu64 " bytes at offset %" PRIu64 " of segment %u are not mapped", bytes,
		    offset, segment);
}
