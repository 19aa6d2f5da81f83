/* See support.h. */
#include "bpf/lat/support.h"

#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define BTF_PATH    "/sys/kernel/btf/vmlinux"
#define NEEDS_LINUX "Linux 5.15 is needed"

#ifndef CAP_PERFMON
#define CAP_PERFMON 38
#define CAP_BPF	    39
#endif

static int noted;

void support_note(int error)
{
	noted = noted == 0 ? error : noted;
}

int support_noted(void)
{
	return noted;
}

static uint64_t capabilities(void)
{
	unsigned long long set = 0;
	char line[256];
	FILE *status = fopen("/proc/self/status", "re");
	while (status != NULL && fgets(line, sizeof(line), status) != NULL)
		if (sscanf(line, "CapEff: %llx", &set) == 1)
			break;
	if (status != NULL)
		fclose(status);
	return set;
}

static int refuse(struct lat_error *err)
{
	return lat_fail(err, LAT_NO_PRIVILEGE,
			"not permitted to load BPF programs: run it as root (sudo ipc-cache-lat), or give it CAP_BPF, "
			"CAP_PERFMON, CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE (setcap(8))");
}

static const char *release(void)
{
	static struct utsname name;
	return uname(&name) == 0 ? name.release : "unknown";
}

/* A release that is known to be too old; one of a distribution that brought features back passes the test of the feature. */
static bool can_tell_cookies(void)
{
	return libbpf_probe_bpf_helper(BPF_PROG_TYPE_KPROBE, BPF_FUNC_get_attach_cookie, NULL) == 1 &&
	       libbpf_probe_bpf_map_type(BPF_MAP_TYPE_RINGBUF, NULL) == 1;
}

int support_check(bool kernel, struct lat_error *err)
{
	uint64_t have = capabilities();
	bool admin = have & 1ull << CAP_SYS_ADMIN;
	if (!admin && ((have & 1ull << CAP_BPF) == 0 || (have & 1ull << CAP_PERFMON) == 0))
		return refuse(err);
	if (!can_tell_cookies())
		return lat_fail(err, LAT_NO_SUPPORT,
				"this kernel (%s) cannot tell probes of one program apart (BPF cookies) or has no BPF "
				"ring buffer; " NEEDS_LINUX,
				release());
	if (kernel && access(BTF_PATH, R_OK) != 0)
		return lat_fail(err, LAT_NO_SUPPORT,
				"this kernel (%s) has no type information: " BTF_PATH " is missing; boot one with "
				"CONFIG_DEBUG_INFO_BTF=y, or look at the probes alone with --no-kernel",
				release());
	return LAT_OK;
}

int support_explain(int error, const char *what, struct lat_error *err)
{
	if (error == EPERM || error == EACCES)
		return refuse(err);
	if (error == EINVAL || error == EOPNOTSUPP || error == ESRCH || error == ENOSYS)
		return lat_fail(err, LAT_NO_SUPPORT,
				"%s: %s; this kernel is %s, " NEEDS_LINUX ", with CONFIG_UPROBES=y", what,
				strerror(error), release());
	return lat_fail(err, LAT_FAILED, "%s: %s", what, strerror(error));
}

bool support_has_tracepoint(const char *name)
{
	static const char *const roots[] = {"/sys/kernel/tracing", "/sys/kernel/debug/tracing"};
	char path[256];
	for (size_t i = 0; i < sizeof(roots) / sizeof(roots[0]); i++) {
		snprintf(path, sizeof(path), "%s/events/%s", roots[i], name);
		if (access(path, F_OK) == 0)
			return true;
	}
	return false;
}
