/* See session.h. Two BPF objects: the probes' needs nothing of the kernel's types, the kernel's needs its BTF. They share
 * their maps, which the first brings. */
#include "bpf/lat/session.h"

#include "bpf/lat/support.h"
#include "bpf/kernel.skel.h"
#include "bpf/probes.skel.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROBE_NAME(name, arguments, texts, track) [EVENT_##name] = #name,
const char *const event_names[EVENT_KINDS] = {
	PROBES(PROBE_NAME)[EVENT_FAULT] = "page_fault", [EVENT_SYSCALL] = "system_call",
	[EVENT_BLOCK] = "block_request", [EVENT_URING] = "io_uring_request"};
#define PROBE_COOKIE(name, arguments, texts, track) [EVENT_##name] = COOKIE(EVENT_##name, arguments, texts, track),
static const uint64_t cookies[EVENT_PROBES] = {PROBES(PROBE_COOKIE)};

#define SETTLE_US	      20000
#define INITIAL_PID_NAMESPACE 0xEFFFFFFCu /* the kernel's PROC_PID_INIT_INO */

struct session {
	struct session_options options;
	struct lat_probes *probes;
	struct lat_kernel *kernel; /* NULL: without */
	struct ring_buffer *ring;
	struct bpf_link **links;
	unsigned link_count;
	bool enough;
	char missing[512];
	uint64_t seen[EVENT_KINDS];
};

static int handle(void *context, void *data, size_t bytes)
{
	struct session *s = context;
	const struct event *event = data;
	const struct event_with_text *with = data;
	if (bytes < sizeof(*event) || event->kind >= EVENT_KINDS)
		return 0;
	s->seen[event->kind]++;
	if (!s->enough)
		s->enough = !s->options.handle(s->options.context, event, event->text_count > 0 ? with->texts : NULL);
	return 0;
}

static int quiet(enum libbpf_print_level level, const char *format, va_list list)
{
	/* What matters is told in sentences; the rest is for whoever debugs this. */
	return getenv("IPC_CACHE_LAT_DEBUG") != NULL && level <= LIBBPF_DEBUG ? vfprintf(stderr, format, list) : 0;
}

static void set_namespace(volatile const __u64 *device, volatile const __u64 *inode)
{
	struct stat facts;
	if (stat("/proc/self/ns/pid", &facts) == 0 && facts.st_ino != INITIAL_PID_NAMESPACE) {
		*(__u64 *)device = facts.st_dev;
		*(__u64 *)inode = facts.st_ino;
	}
}

static int load_probes(struct session *s, struct lat_error *err)
{
	s->probes = lat_probes__open();
	if (s->probes == NULL)
		return lat_fail(err, LAT_FAILED, "cannot open the BPF object: %s", strerror(errno));
	*(__u32 *)&s->probes->rodata->target_pid = s->options.pid;
	set_namespace(&s->probes->rodata->namespace_device, &s->probes->rodata->namespace_inode);
	bpf_map__set_max_entries(s->probes->maps.ring, (__u32)s->options.buffer_bytes);
	int r = lat_probes__load(s->probes);
	return r == 0 ? LAT_OK : support_explain(-r, "loading the BPF program of the probes", err);
}

/* Which tracepoints are not there: their programs stay out. Those that come in pairs go in pairs. */
static void skip_missing(struct session *s)
{
	struct bpf_program *program;
	size_t length = 0;
	bpf_object__for_each_program(program, s->kernel->obj)
	{
		const char *name = strchr(bpf_program__section_name(program), '/') + 1;
		if (support_has_tracepoint(name))
			continue;
		bpf_program__set_autoload(program, false);
		length += (size_t)snprintf(s->missing + length, sizeof(s->missing) - length, "%s%s",
					   length == 0 ? "this kernel has no tracepoint " : ", ", name);
		if (length >= sizeof(s->missing))
			length = sizeof(s->missing) - 1;
	}
}

static int load_kernel(struct session *s, struct lat_error *err)
{
	if (!s->options.kernel)
		return LAT_OK;
	if (!support_has_tracepoint("")) {
		snprintf(s->missing, sizeof(s->missing),
			 "the kernel's events are left out: no tracefs; mount -t tracefs nodev /sys/kernel/tracing");
		return LAT_OK;
	}
	s->kernel = lat_kernel__open();
	if (s->kernel == NULL)
		return lat_fail(err, LAT_FAILED, "cannot open the BPF object: %s", strerror(errno));
	set_namespace(&s->kernel->rodata->namespace_device, &s->kernel->rodata->namespace_inode);
	bpf_map__set_max_entries(s->kernel->maps.ring, (__u32)s->options.buffer_bytes);
	skip_missing(s);
	int r = bpf_map__reuse_fd(s->kernel->maps.ring, bpf_map__fd(s->probes->maps.ring));
	r = r != 0 ? r : bpf_map__reuse_fd(s->kernel->maps.lost, bpf_map__fd(s->probes->maps.lost));
	r = r != 0 ? r : bpf_map__reuse_fd(s->kernel->maps.tracked, bpf_map__fd(s->probes->maps.tracked));
	r = r != 0 ? r : bpf_map__reuse_fd(s->kernel->maps.processes, bpf_map__fd(s->probes->maps.processes));
	r = r != 0 ? r : lat_kernel__load(s->kernel);
	r = r != 0 ? r : lat_kernel__attach(s->kernel);
	return r == 0 ? LAT_OK
		      : support_explain(-r, "loading and attaching the BPF programs of the kernel's side", err);
}

static void add_link(struct session *s, struct bpf_link *link)
{
	s->links = lat_checked(realloc(s->links, (s->link_count + 1) * sizeof(struct bpf_link *)));
	s->links[s->link_count++] = link;
}

void session_follow(struct session *s, struct lat_files *files)
{
	for (unsigned i = 0; i < files->count; i++) {
		struct lat_file *file = &files->files[i];
		for (unsigned kind = 0; kind < EVENT_PROBES && !file->seen; kind++) {
			LIBBPF_OPTS(bpf_usdt_opts, options, .usdt_cookie = cookies[kind]);
			struct bpf_link *link = bpf_program__attach_usdt(s->probes->progs.on_probe, -1, file->path,
									 "ipc_cache", event_names[kind], &options);
			if (link != NULL)
				add_link(s, link);
			else if (errno != ENOENT)
				support_note(errno);
		}
		file->seen = true;
	}
}

static int attach(struct session *s, struct lat_files *files, struct lat_error *err)
{
	if (files->count == 0)
		return lat_fail(
			err, LAT_NOT_FOUND,
			"neither a running nor an installed ipc-cached, ipc-cache or libipc_cache.so was found; "
			"start one, or name it with --file");
	session_follow(s, files);
	if (s->link_count > 0)
		return LAT_OK;
	if (support_noted() != 0)
		return support_explain(support_noted(), "attaching to the probes", err);
	return lat_fail(err, LAT_NO_PROBES,
			"%s%s no probes: built with USDT=0, or without systemtap's sys/sdt.h (Debian: "
			"systemtap-sdt-dev); build again with it",
			lat_shown(files->files[0].name), files->count > 1 ? " and the other files have" : " has");
}

int session_open(struct session **session, const struct session_options *options, struct lat_files *files,
		 struct lat_error *err)
{
	struct session *s = lat_checked(calloc(1, sizeof(*s)));
	s->options = *options;
	libbpf_set_print(quiet);
	int rc = support_check(options->kernel, err);
	if (rc == LAT_OK)
		rc = load_probes(s, err);
	if (rc == LAT_OK)
		rc = attach(s, files, err);
	if (rc == LAT_OK)
		rc = load_kernel(s, err);
	if (rc == LAT_OK) {
		s->ring = ring_buffer__new(bpf_map__fd(s->probes->maps.ring), handle, s, NULL);
		if (s->ring == NULL)
			rc = lat_fail(err, LAT_FAILED, "cannot map the ring buffer: %s", strerror(errno));
	}
	if (rc != LAT_OK) {
		session_close(s);
		return rc;
	}
	*session = s;
	return LAT_OK;
}

int session_poll(struct session *s, int timeout_ms, struct lat_error *err)
{
	int r = ring_buffer__poll(s->ring, timeout_ms);
	if (r < 0 && r != -EINTR)
		return lat_fail(err, LAT_FAILED, "cannot read the ring buffer: %s", strerror(-r));
	ring_buffer__consume(s->ring); /* few events wake nobody */
	return LAT_OK;
}

void session_stop(struct session *s)
{
	s->probes->bss->stopped = true;
	if (s->kernel != NULL)
		s->kernel->bss->stopped = true;
	/* Those that run at this moment end within microseconds. */
	usleep(SETTLE_US);
	while (ring_buffer__consume(s->ring) > 0)
		;
}

/* Detaching takes the kernel a tenth of a second for each probe, and who closes a link's last file descriptor waits for it.
 * That is a child, so that nobody does: it ends when the returned pipe does, which is to be closed after all else. -1: there
 * is no child. */
static int leave_to_child(void)
{
	int until[2];
	if (pipe2(until, O_CLOEXEC) != 0)
		return -1;
	pid_t child = fork();
	if (child == 0) {
		char byte;
		setsid();
		close(STDIN_FILENO);
		close(STDOUT_FILENO);
		close(STDERR_FILENO);
		close(until[1]);
		while (read(until[0], &byte, 1) < 0 && errno == EINTR)
			;
		_exit(0);
	}
	close(until[0]);
	return until[1];
}

void session_close(struct session *s)
{
	int until = s->link_count > 0 ? leave_to_child() : -1;
	for (unsigned i = 0; i < s->link_count; i++)
		bpf_link__destroy(s->links[i]);
	free(s->links);
	ring_buffer__free(s->ring);
	lat_kernel__destroy(s->kernel);
	lat_probes__destroy(s->probes);
	if (until >= 0)
		close(until);
	free(s);
}

unsigned session_sites(const struct session *s)
{
	return s->link_count;
}

const char *session_missing(const struct session *s)
{
	return s->missing;
}

uint64_t session_seen(const struct session *s, unsigned kind)
{
	return s->seen[kind];
}

uint64_t session_lost(const struct session *s, unsigned kind)
{
	uint64_t count = 0;
	__u32 key = kind;
	bpf_map_lookup_elem(bpf_map__fd(s->probes->maps.lost), &key, &count);
	return count;
}

uint64_t session_skipped(const struct session *s)
{
	uint64_t skipped = 0;
	struct bpf_program *program;
	if (s->kernel == NULL)
		return 0;
	bpf_object__for_each_program(program, s->kernel->obj)
	{
		struct bpf_prog_info info = {0};
		__u32 bytes = sizeof(info);
		if (bpf_program__fd(program) >= 0 &&
		    bpf_obj_get_info_by_fd(bpf_program__fd(program), &info, &bytes) == 0)
			skipped += info.recursion_misses;
	}
	return skipped;
}
