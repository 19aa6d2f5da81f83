/*
 * ipc-cache-lat: where attaches and loads spend their time, live, from the probes of broker, library and loader and from
 * the kernel's tracepoints. This file has the options and the loop; see session.h (the kernel), starts.h (what happened),
 * report.h and trace.h (what is told).
 */
#include "bpf/lat/report.h"
#include "bpf/lat/trace.h"

#include <argp.h>
#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define POLL_MS	    20
#define RESCAN_NS   1000000000ull
#define MIB	    ((uint64_t)1 << 20)
#define MOST_FILES  64
#define DEFAULT_MIB 16

/* argp looks it up by name. */
__attribute__((visibility("default"))) const char *argp_program_version = "ipc-cache-lat " IPCC_VERSION;

enum { OPTION_JSON = 1000, OPTION_SLOWER, OPTION_TRACE, OPTION_FOLDED, OPTION_FILE, OPTION_BUFFER, OPTION_NO_KERNEL };

static const struct argp_option options[] = {
	{"pid", 'p', "PID", 0, "Only attaches and loads of this process", 0},
	{"model", 'm', "MODEL", 0, "Only of this model: its name, or what the engine asks for", 0},
	{"slower-than", OPTION_SLOWER, "US", 0, "Tell of each attach that takes longer, and what took most of it", 0},
	{"events", 'n', "N", 0, "End after N attaches", 0},
	{"duration", 'd', "SECONDS", 0, "End after so long", 0},
	{"interval", 'i', "SECONDS", 0, "Show the table so often (default: 2 on a terminal, else only at the end)", 0},
	{"histogram", 'H', NULL, 0, "Show a histogram of each phase too", 0},
	{"json", OPTION_JSON, NULL, 0, "Print one JSON document at the end instead", 0},
	{"trace", OPTION_TRACE, "FILE", 0, "Write a trace that ui.perfetto.dev and chrome://tracing open", 0},
	{"folded", OPTION_FOLDED, "FILE", 0, "Write folded stacks, for flame graphs", 0},
	{"file", OPTION_FILE, "FILE", 0, "Follow this program or library too; may be repeated", 0},
	{"buffer", OPTION_BUFFER, "MIB", 0, "Size of the kernel's buffer, a power of two (default: 16)", 0},
	{"no-kernel", OPTION_NO_KERNEL, NULL, 0, "Only the probes: no page faults, system calls and block requests", 0},
	{0},
};

static const char doc[] = "Shows where attaches to model weights, and loads of them, spend their time: percentiles of "
			  "each phase, in broker, "
			  "library, loader and kernel."
			  "\vEXAMPLES\n"
			  "  ipc-cache-lat                       live, until Ctrl-C\n"
			  "  ipc-cache-lat --slower-than 1000    what made an attach slow\n"
			  "  ipc-cache-lat -n 1 --trace a.json   one attach for Perfetto, with the kernel's part\n"
			  "  ipc-cache-lat -d 10 --json          for programs\n"
			  "ipc-cache-lat(1) explains the phases and the exit status, ipc-cache-probes(7) the probes.";

struct lat {
	struct session_options session;
	struct starts_options starts_options;
	uint64_t slower_ns, events, duration_ns, interval_ns;
	bool slow_wanted, json, histogram, interval_set;
	const char *trace_path, *folded_path, *files[MOST_FILES];
	unsigned file_count;
	struct lat_files found;
	struct phases phases;
	struct starts_counts counts;
	struct starts *starts;
	struct report report;
	struct trace *trace;
};

static volatile sig_atomic_t interrupted;

static void interrupt(int number)
{
	(void)number;
	interrupted = 1;
}

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* A decimal number between least and most. The command has the same in tools/options.c: what lies under bpf/ is built without
 * the rest of the tree, and these lines are no reason to change that. */
static uint64_t option_number(const struct argp_state *state, const char *what, const char *value, uint64_t least,
			      uint64_t most)
{
	char *end;
	errno = 0;
	unsigned long long number = strtoull(value, &end, 10);
	if (value[0] < '0' || value[0] > '9' || *end != '\0' || errno != 0 || number < least || number > most)
		argp_error(state, "%s: '%s' is not a number from %llu to %llu", what, value, (unsigned long long)least,
			   (unsigned long long)most);
	return number;
}

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct lat *lat = state->input;
	switch (key) {
	case 'p':
		lat->session.pid = (uint32_t)option_number(state, "--pid", value, 1, INT32_MAX);
		return 0;
	case 'm':
		lat->starts_options.model = value;
		return 0;
	case OPTION_SLOWER:
		lat->slower_ns = option_number(state, "--slower-than", value, 0, UINT32_MAX) * 1000;
		lat->slow_wanted = true;
		return 0;
	case 'n':
		lat->events = option_number(state, "--events", value, 1, UINT32_MAX);
		return 0;
	case 'd':
		lat->duration_ns = option_number(state, "--duration", value, 1, UINT32_MAX) * 1000000000;
		return 0;
	case 'i':
		lat->interval_ns = option_number(state, "--interval", value, 0, UINT32_MAX) * 1000000000;
		lat->interval_set = true;
		return 0;
	case 'H':
		lat->histogram = true;
		return 0;
	case OPTION_JSON:
		lat->json = true;
		return 0;
	case OPTION_TRACE:
		lat->trace_path = value;
		return 0;
	case OPTION_FOLDED:
		lat->folded_path = value;
		return 0;
	case OPTION_FILE:
		if (lat->file_count == MOST_FILES)
			argp_error(state, "--file: more than %d", MOST_FILES);
		lat->files[lat->file_count++] = value;
		return 0;
	case OPTION_BUFFER: {
		uint64_t mib = option_number(state, "--buffer", value, 1, 1024);
		if ((mib & (mib - 1)) != 0)
			argp_error(state, "--buffer: %s is no power of two", value);
		lat->session.buffer_bytes = mib * MIB;
		return 0;
	}
	case OPTION_NO_KERNEL:
		lat->session.kernel = false;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "no argument is expected: %s", value);
		return EINVAL;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static bool on_event(void *context, const struct event *event, const char (*texts)[EVENT_TEXT_BYTES])
{
	struct lat *lat = context;
	starts_event(lat->starts, event, texts);
	starts_count(lat->starts, &lat->counts);
	return lat->events == 0 || lat->counts.attaches + lat->counts.failed < lat->events;
}

static void on_attach(void *context, const struct attach *attach)
{
	struct lat *lat = context;
	bool slow = attach->phase_ns[PHASE_TOTAL] > lat->slower_ns || attach->code != 0;
	lat->report.faults += attach->faults;
	if (lat->slow_wanted && slow)
		report_slow(&lat->report, attach);
	if (lat->trace != NULL && (slow || !lat->slow_wanted))
		trace_attach(lat->trace, attach);
}

static void on_load(void *context, const struct load *load)
{
	report_load(&((struct lat *)context)->report, load);
}

static void on_mismatch(void *context, const struct mismatch *mismatch)
{
	report_mismatch(&((struct lat *)context)->report, mismatch);
}

static void on_slice(void *context, const struct slice *slice)
{
	struct lat *lat = context;
	if (lat->trace != NULL)
		trace_slice(lat->trace, slice);
}

static bool is_over(const struct lat *lat, uint64_t begin_ns, uint64_t now)
{
	return interrupted || (lat->duration_ns != 0 && now - begin_ns >= lat->duration_ns) ||
	       (lat->events != 0 && lat->counts.attaches + lat->counts.failed >= lat->events);
}

static int follow(struct lat *lat, struct session *session, struct lat_error *err)
{
	uint64_t begin = now_ns(), shown = begin, scanned = begin, now = begin;
	int rc = LAT_OK;
	fprintf(stderr, "ipc-cache-lat: following %u probes of %u files%s%s%s\n", session_sites(session),
		lat->found.count, *session_missing(session) != '\0' ? "; " : "", session_missing(session),
		lat->duration_ns == 0 && lat->events == 0 ? "; Ctrl-C ends" : "");
	while (rc == LAT_OK && !is_over(lat, begin, now)) {
		rc = session_poll(session, POLL_MS, err);
		now = now_ns();
		if (lat->interval_ns != 0 && !lat->json && now - shown >= lat->interval_ns) {
			report_table(&lat->report);
			shown = now;
		}
		if (now - scanned >= RESCAN_NS) {
			files_find(&lat->found);
			session_follow(session, &lat->found);
			scanned = now_ns();
		}
		fflush(stdout);
	}
	session_stop(session);
	return rc;
}

static int run(struct lat *lat, struct lat_error *err)
{
	struct session *session = NULL;
	int rc = LAT_OK;
	for (unsigned i = 0; rc == LAT_OK && i < lat->file_count; i++)
		rc = files_add(&lat->found, lat->files[i], err);
	if (rc == LAT_OK)
		files_find(&lat->found);
	if (rc == LAT_OK && (lat->trace_path != NULL || lat->folded_path != NULL))
		rc = trace_open(&lat->trace, lat->trace_path, lat->folded_path, err);
	if (rc == LAT_OK)
		rc = session_open(&session, &lat->session, &lat->found, err);
	if (rc != LAT_OK) {
		trace_close(lat->trace, &(struct lat_error){0});
		return rc;
	}
	report_init(&lat->report, lat->json);
	lat->report.session = session;
	rc = follow(lat, session, err);
	if (lat->json)
		report_document(&lat->report);
	else
		report_table(&lat->report);
	session_close(session);
	struct lat_error trace_err;
	int closed = trace_close(lat->trace, rc == LAT_OK ? err : &trace_err);
	return rc != LAT_OK ? rc : closed;
}

int main(int argc, char **argv)
{
	static struct lat lat = {.session = {.buffer_bytes = DEFAULT_MIB * MIB, .kernel = true, .handle = on_event}};
	static const struct argp parser = {options, parse, NULL, doc, NULL, NULL, NULL};
	struct lat_error err = {0};
	setlocale(LC_CTYPE, "");
	argp_err_exit_status = LAT_USAGE;
	if (argp_parse(&parser, argc, argv, 0, NULL, &lat) != 0)
		return LAT_FAILED;
	lat.session.context = &lat;
	lat.starts_options = (struct starts_options){.model = lat.starts_options.model,
						     .slices = lat.trace_path != NULL,
						     .context = &lat,
						     .attached = on_attach,
						     .loaded = on_load,
						     .mismatched = on_mismatch,
						     .sliced = on_slice};
	if (!lat.interval_set)
		lat.interval_ns = isatty(STDOUT_FILENO) ? 2000000000 : 0;
	lat.report = (struct report){
		.histogram = lat.histogram, .phases = &lat.phases, .counts = &lat.counts, .files = &lat.found};
	phases_init(&lat.phases);
	lat.starts = starts_new(&lat.starts_options, &lat.phases);
	struct sigaction action = {.sa_handler = interrupt};
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	int rc = run(&lat, &err);
	starts_free(lat.starts);
	files_fini(&lat.found);
	if (rc != LAT_OK)
		report_error(lat.json, &err);
	if (fflush(stdout) != 0 && rc == LAT_OK)
		return LAT_FAILED;
	return rc;
}
