/* What `doctor` asks the kernel. Features are tried, not concluded from versions: containers filter system calls. */
#include "loader/device/memory.h"
#include "loader/reader.h"
#include "manifest/fd.h"
#include "tools/findings.h"
#include "tools/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Younger than the C library's headers may be. */
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

#define SHMEM_ENABLED "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
#define MIN_FDS	      1024
#define MIN_MEMORY    ((uint64_t)1 << 30)

/* The first line of a small file, without its newline; "" when it cannot be read. */
static void read_line(const char *path, char *line, int capacity)
{
	FILE *file = fopen(path, "re");
	if (file == NULL || fgets(line, capacity, file) == NULL)
		line[0] = '\0';
	line[strcspn(line, "\n")] = '\0';
	if (file != NULL)
		fclose(file);
}

static void check_memfd(struct findings *f)
{
	struct utsname name;
	struct memfd_facts facts;
	struct ipcc_error err;
	uname(&name);
	cleanup_fd int fd = memfd_new("ipc-cache-doctor", 4096);
	int rc = fd < 0 ? fd : memfd_seal(fd);
	if (rc < 0)
		findings_add(
			f, FINDING_FAIL, "memfd",
			format_text("Linux %s gives no sealed memory: %s", name.release, strerror(-rc)),
			format_text("use Linux 5.10 or newer; in a container, allow memfd_create; set vm.memfd_noexec "
				    "below 2"));
	else if (memfd_check(fd, "the memfd", &facts, &err) != IPCC_OK)
		findings_add(f, FINDING_FAIL, "memfd", format_text("Linux %s: %s", name.release, err.message),
			     format_text("use Linux 5.10 or newer"));
	else
		findings_add(f, FINDING_OK, "memfd", format_text("Linux %s gives sealed memory", name.release), NULL);
}

static void check_proc(struct findings *f)
{
	if (access("/proc/self/fd", X_OK) == 0)
		findings_add(f, FINDING_OK, "proc", format_text("/proc is mounted"), NULL);
	else
		findings_add(f, FINDING_FAIL, "proc",
			     format_text("/proc/self/fd is missing, through which the broker's socket is reached"),
			     format_text("run: mount -t proc proc /proc"));
}

static void check_huge_pages(struct findings *f)
{
	char line[256];
	read_line(SHMEM_ENABLED, line, sizeof(line));
	if (line[0] == '\0')
		findings_add(f, FINDING_WARN, "huge pages",
			     format_text("the kernel has no huge pages for memfds; loading is slower"), NULL);
	else if (strstr(line, "[never]") != NULL || strstr(line, "[deny]") != NULL)
		findings_add(f, FINDING_WARN, "huge pages", format_text("off for memfds (%s): loading is slower", line),
			     format_text("as root: echo advise > " SHMEM_ENABLED));
	else
		findings_add(f, FINDING_OK, "huge pages", format_text("on for memfds (%s)", line), NULL);
}

static void check_memory(struct findings *f)
{
	struct memory_room room;
	struct ipcc_error err;
	if (memory_room("", &room, &err) != IPCC_OK) {
		findings_add(f, FINDING_FAIL, "memory", format_text("%s", err.message), NULL);
		return;
	}
	char *text = format_text("%s of %s can be allocated (%s)", text_size(room.available_bytes).text,
				 text_size(room.limit_bytes).text, room.bound_by);
	if (room.available_bytes >= MIN_MEMORY)
		findings_add(f, FINDING_OK, "memory", text, NULL);
	else
		findings_add(f, FINDING_WARN, "memory", text,
			     room.cgroup ? format_text("raise that limit, or evict models (ipc-cache ls)")
					 : format_text("end other programs, or evict models (ipc-cache ls)"));
}

static void check_fds(struct findings *f)
{
	struct rlimit limit;
	getrlimit(RLIMIT_NOFILE, &limit);
	char *text = format_text("%llu, can be raised to %llu", (unsigned long long)limit.rlim_cur,
				 (unsigned long long)limit.rlim_max);
	if (limit.rlim_max >= MIN_FDS)
		findings_add(f, FINDING_OK, "open files", text, NULL);
	else
		findings_add(
			f, FINDING_WARN, "open files", text,
			format_text("raise the hard limit (ulimit -Hn, or LimitNOFILE= of a service) to %d or more",
				    MIN_FDS));
}

static void check_memlock(struct findings *f)
{
	struct rlimit limit;
	getrlimit(RLIMIT_MEMLOCK, &limit);
	findings_add(
		f, FINDING_OK, "locked memory",
		limit.rlim_cur == RLIM_INFINITY
			? format_text("no limit")
			: format_text(
				  "up to %s; buffers beyond it are not registered with io_uring, which costs little",
				  text_size(limit.rlim_cur).text),
		NULL);
}

/* How files can be read. Nothing of it is necessary. */
static void check_reading(struct findings *f)
{
	char disabled[32];
	int error = -reader_probe();
	read_line("/proc/sys/kernel/io_uring_disabled", disabled, sizeof(disabled));
	if (error == 0)
		findings_add(f, FINDING_OK, "io_uring", format_text("can be used"), NULL);
	else
		findings_add(
			f, FINDING_WARN, "io_uring",
			format_text("cannot be used (%s%s%s): threads read instead", strerror(error),
				    disabled[0] == '\0' ? "" : ", kernel.io_uring_disabled=", disabled),
			disabled[0] == '\0' || disabled[0] == '0'
				? format_text(
					  "in a container, allow io_uring_setup, io_uring_enter and io_uring_register")
				: format_text("as root: sysctl kernel.io_uring_disabled=0"));
	bool cachestat = syscall(SYS_cachestat, -1, NULL, NULL, 0) == 0 || errno != ENOSYS;
	findings_add(f, FINDING_OK, "cachestat",
		     format_text(cachestat ? "present" : "absent (Linux 6.5 brings it): the page cache is sampled"),
		     NULL);
}

/* vLLM loads only the plugins that this variable lists, if it is set. Silent where vLLM is not the matter. */
static void check_vllm_plugins(struct findings *f)
{
	static const char plugin[] = "ipc_cache";
	const char *list = getenv("VLLM_PLUGINS"), *at = list;
	size_t length = strlen(plugin);
	bool listed = false;
	if (list == NULL)
		return;
	for (; !listed && at != NULL; at = strchr(at, ',')) {
		at += *at == ',';
		listed = strncmp(at, plugin, length) == 0 && (at[length] == ',' || at[length] == '\0');
	}
	if (listed)
		findings_add(f, FINDING_OK, "VLLM_PLUGINS", format_text("lists %s", plugin), NULL);
	else
		findings_add(f, FINDING_WARN, "VLLM_PLUGINS",
			     format_text("is set and does not list %s: vLLM will not know the load format ipc_broker",
					 plugin),
			     format_text("unset it, or add %s to it", plugin));
}

void check_machine(struct findings *f)
{
	check_memfd(f);
	check_proc(f);
	check_huge_pages(f);
	check_memory(f);
	check_fds(f);
	check_memlock(f);
	check_reading(f);
	check_vllm_plugins(f);
}
