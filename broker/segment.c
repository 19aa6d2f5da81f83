/* See segment.h. statx with AT_STATX_DONT_SYNC answers from what the kernel knows: an fstat of a FUSE file would wait. */
#include "broker/segment.h"

#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define HOST "host"
/* NVIDIA's; its exported memory is an open /dev/nvidiactl. Fixed, in the kernel's devices.txt. */
#define NVIDIA_MAJOR  195
#define DMA_BUF_MAGIC 0x444d4142

const char *segment_device(const struct key *key)
{
	const char *device = key_value(key, "device");
	return device != NULL ? device : HOST;
}

bool segment_is_host(const struct key *key)
{
	return strcmp(segment_device(key), HOST) == 0;
}

/* Files of a kind have a type; what has none is the kernel's own, so that asking its file system asks nobody else. */
static bool is_dma_buf(int fd, const struct statx *st)
{
	struct statfs fs;
	return (st->stx_mode & S_IFMT) == 0 && fstatfs(fd, &fs) == 0 && fs.f_type == DMA_BUF_MAGIC;
}

static int check_device(int fd, const char *what, struct ipcc_error *err)
{
	struct statx st;
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0 || (flags & O_PATH) != 0)
		return fail(err, IPCC_INVALID, "%s is no open file; send what the GPU's driver exported", what);
	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &st) != 0)
		return fail_errno(err, errno, "%s: statx", what);
	if ((S_ISCHR(st.stx_mode) && st.stx_rdev_major == NVIDIA_MAJOR) || is_dma_buf(fd, &st))
		return IPCC_OK;
	return fail(err, IPCC_INVALID,
		    "%s is no GPU memory: neither of NVIDIA's character device nor a dma-buf; send what "
		    "the GPU's driver exported",
		    what);
}

int segment_check(const struct key *key, int fd, const char *what, struct segment_facts *facts, struct ipcc_error *err)
{
	struct memfd_facts memory;
	bool host = segment_is_host(key), sized = host || fcntl(fd, F_GET_SEALS) >= 0;
	int rc = host	 ? memfd_check(fd, what, &memory, err)
		 : sized ? memfd_check_sized(fd, what, &memory, err)
			 : check_device(fd, what, err);
	if (rc != IPCC_OK)
		return rc;
	*facts = sized ? (struct segment_facts){true, memory.bytes, memory.device, memory.inode}
		       : (struct segment_facts){0};
	return IPCC_OK;
}
