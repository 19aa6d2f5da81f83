/* libFuzzer over the safetensors header: what is accepted must lie inside the file, in order and without holes. */
#include "loader/safetensors.h"
#include "manifest/fd.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char path[64];
	struct safetensors st;
	cleanup_fd int fd = memfd_create("fuzz", MFD_CLOEXEC);
	if (fd < 0 || fd_write_exact(fd, data, size, 0) != 0)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (safetensors_read(&st, AT_FDCWD, path, path, NULL) != IPCC_OK)
		return 0;
	uint64_t end = st.data_begin;
	for (uint32_t i = 0; i < st.tensor_count; i++) {
		if (st.tensors[i].begin != end || st.tensors[i].end < end)
			abort();
		end = st.tensors[i].end;
	}
	if (end != size)
		abort();
	safetensors_fini(&st);
	return 0;
}
