/* See report.h. */
#include "bpf/lat/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* A document keeps so many of each kind; the counts go on. */
#define MOST_ENTRIES 10000

static double us(uint64_t ns)
{
	return (double)ns / 1000;
}

static json_t *text(const char *bytes)
{
	json_t *string = json_string(bytes);
	return lat_checked(string != NULL ? string : json_string(lat_shown(bytes)));
}

static json_t *number(uint64_t value)
{
	return lat_checked(json_integer((json_int_t)value));
}

static void keep(json_t *list, json_t *entry)
{
	lat_checked(entry);
	if (json_array_size(list) < MOST_ENTRIES)
		json_array_append_new(list, entry);
	else
		json_decref(entry);
}

void report_init(struct report *report, bool json)
{
	report->json = json;
	if (json) {
		report->slow = lat_checked(json_array());
		report->loads = lat_checked(json_array());
		report->mismatches = lat_checked(json_array());
	}
}

static const char *now_text(void)
{
	static char text[16];
	time_t now = time(NULL);
	struct tm parts;
	strftime(text, sizeof(text), "%H:%M:%S", localtime_r(&now, &parts));
	return text;
}

/* The phase without parts that took longest. */
static enum phase culprit(const struct attach *a)
{
	static const enum phase leaves[] = {PHASE_CONNECT, PHASE_REQUEST, PHASE_MANIFEST, PHASE_SOURCES,
					    PHASE_IMPORT,  PHASE_MAPPING, PHASE_ACCESS};
	enum phase worst = PHASE_CONNECT;
	for (size_t i = 0; i < sizeof(leaves) / sizeof(leaves[0]); i++)
		if (a->phase_ns[leaves[i]] > a->phase_ns[worst])
			worst = leaves[i];
	return worst;
}

static void print_slow(const struct report *r, const struct attach *a)
{
	printf("%s %s pid %u: %s in %.1f us, most of it %s:", now_text(), lat_shown(a->comm), a->pid,
	       lat_shown(a->name[0] != '\0' ? a->name : a->wanted), us(a->phase_ns[PHASE_TOTAL]),
	       r->phases->names[culprit(a)]);
	for (unsigned i = PHASE_CONNECT; i < PHASE_READ_DIRECT; i++)
		if (a->phase_seen[i])
			printf(" %s %.1f", r->phases->names[i], us(a->phase_ns[i]));
	if (a->code != 0)
		printf("; failed with code %d", a->code);
	if (a->parked > 0)
		printf("; it waited in the broker");
	if (a->faults > 0)
		printf("; %" PRIu64 " page faults", a->faults);
	if (a->blocks > 0)
		printf("; %" PRIu64 " block requests, %.1f MiB", a->blocks, (double)a->block_bytes / (1 << 20));
	if (a->calls > 0)
		printf("; %" PRIu64 " mmap and driver calls, %.1f us", a->calls, us(a->call_ns));
	putchar('\n');
}

void report_slow(struct report *r, const struct attach *a)
{
	if (!r->json) {
		print_slow(r, a);
		return;
	}
	json_t *phases = lat_checked(json_object());
	for (unsigned i = 0; i < PHASE_READ_DIRECT; i++)
		if (a->phase_seen[i])
			json_object_set_new(phases, r->phases->names[i], lat_checked(json_real(us(a->phase_ns[i]))));
	keep(r->slow,
	     json_pack("{s:I, s:o, s:o, s:o, s:i, s:s, s:o, s:I, s:I, s:I, s:f, s:I}", "pid", (json_int_t)a->pid,
		       "command", text(a->comm), "model", text(a->name), "wanted", text(a->wanted), "code", a->code,
		       "most", r->phases->names[culprit(a)], "times_us", phases, "page_faults", (json_int_t)a->faults,
		       "block_requests", (json_int_t)a->blocks, "block_bytes", (json_int_t)a->block_bytes, "block_us",
		       us(a->block_ns), "parked", (json_int_t)a->parked));
}

static const char *const path_names[] = {"direct", "buffered", "mapped"};

void report_load(struct report *r, const struct load *l)
{
	uint64_t ns = l->end_ns - l->begin_ns;
	const char *name = l->name[0] != '\0' ? l->name : l->root;
	if (!r->json) {
		printf("%s %s pid %u: loaded %s in %.1f us, %.2f GB/s:", now_text(), lat_shown(l->comm), l->pid,
		       lat_shown(name), us(ns), ns > 0 ? (double)l->bytes / (double)ns : 0);
		for (unsigned i = 0; i < 3; i++)
			if (l->reads[i] > 0)
				printf(" %" PRIu64 " reads %s of %.1f MiB, %.1f us each;", l->reads[i], path_names[i],
				       (double)l->path_bytes[i] / (1 << 20), us(l->read_ns[i] / l->reads[i]));
		printf(" %" PRIu64 " block requests of %.1f MiB\n", l->blocks, (double)l->block_bytes / (1 << 20));
		return;
	}
	json_t *paths = lat_checked(json_object());
	for (unsigned i = 0; i < 3; i++)
		json_object_set_new(paths, path_names[i],
				    lat_checked(json_pack("{s:I, s:I, s:f}", "reads", (json_int_t)l->reads[i], "bytes",
							  (json_int_t)l->path_bytes[i], "us", us(l->read_ns[i]))));
	keep(r->loads,
	     json_pack("{s:I, s:o, s:o, s:o, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "pid",
		       (json_int_t)l->pid, "command", text(l->comm), "model", text(l->name), "path", text(l->root),
		       "us", us(ns), "bytes", (json_int_t)l->bytes, "segments", (json_int_t)l->segments, "tensors",
		       (json_int_t)l->tensors, "hashed_bytes", (json_int_t)l->hashed_bytes, "uploads",
		       (json_int_t)l->uploads, "upload_bytes", (json_int_t)l->upload_bytes, "block_requests",
		       (json_int_t)l->blocks, "block_bytes", (json_int_t)l->block_bytes, "reads", paths));
}

void report_mismatch(struct report *r, const struct mismatch *m)
{
	if (!r->json)
		printf("%s mismatch, pid %u: %s: expected %s, got %s\n", now_text(), m->pid, lat_shown(m->field),
		       lat_shown(m->expected), lat_shown(m->got));
	else
		keep(r->mismatches, json_pack("{s:I, s:o, s:o, s:o}", "pid", (json_int_t)m->pid, "field",
					      text(m->field), "expected", text(m->expected), "got", text(m->got)));
}

uint64_t report_lost(const struct session *session)
{
	uint64_t lost = 0;
	for (unsigned i = 0; i < EVENT_KINDS; i++)
		lost += session_lost(session, i);
	return lost;
}

void report_table(const struct report *r)
{
	const struct starts_counts *c = r->counts;
	printf("%s %" PRIu64 " attaches, %" PRIu64 " failed, %" PRIu64 " mismatches, %" PRIu64 " loads; %" PRIu64
	       " events lost, %" PRIu64 " tracepoints skipped; %.1f page faults an attach\n",
	       now_text(), c->attaches, c->failed, c->mismatches, c->loads, report_lost(r->session),
	       session_skipped(r->session),
	       c->attaches + c->failed > 0 ? (double)r->faults / (double)(c->attaches + c->failed) : 0);
	printf("%-20s %9s %11s %11s %11s %11s  us\n", "PHASE", "COUNT", "P50", "P90", "P99", "MAX");
	for (unsigned i = 0; i < r->phases->count; i++) {
		const struct histogram *h = &r->phases->histograms[i];
		if (h->count == 0)
			continue;
		printf("%*s%-*s %9" PRIu64 " %11.1f %11.1f %11.1f %11.1f\n", 2 * (int)r->phases->depths[i], "",
		       20 - 2 * (int)r->phases->depths[i], lat_shown(r->phases->names[i]), h->count,
		       us(histogram_percentile(h, 50)), us(histogram_percentile(h, 90)),
		       us(histogram_percentile(h, 99)), us(h->most_ns));
		if (r->histogram)
			histogram_print(h, stdout);
	}
	fflush(stdout);
}

static json_t *events_json(const struct session *session)
{
	json_t *events = lat_checked(json_object());
	for (unsigned i = 0; i < EVENT_KINDS; i++) {
		uint64_t seen = session_seen(session, i), lost = session_lost(session, i);
		if (seen + lost > 0)
			json_object_set_new(events, event_names[i],
					    lat_checked(json_pack("{s:I, s:I}", "seen", (json_int_t)seen, "lost",
								  (json_int_t)lost)));
	}
	return events;
}

void report_document(struct report *r)
{
	const struct starts_counts *c = r->counts;
	json_t *phases = lat_checked(json_object()), *files = lat_checked(json_array());
	for (unsigned i = 0; i < r->phases->count; i++)
		if (r->phases->histograms[i].count > 0)
			json_object_set_new(phases, r->phases->names[i],
					    histogram_json(&r->phases->histograms[i], r->histogram));
	for (unsigned i = 0; i < r->files->count; i++)
		json_array_append_new(files, text(r->files->files[i].name));
	json_t *document = lat_checked(json_object());
	json_object_set_new(document, "attaches", number(c->attaches));
	json_object_set_new(document, "failed", number(c->failed));
	json_object_set_new(document, "refused_connections", number(c->refused_connections));
	json_object_set_new(document, "page_faults", number(r->faults));
	json_object_set_new(document, "lost", number(report_lost(r->session)));
	json_object_set_new(document, "skipped", number(session_skipped(r->session)));
	json_object_set_new(document, "events", events_json(r->session));
	json_object_set_new(document, "phases_us", phases);
	json_object_set_new(document, "mismatches", r->mismatches);
	json_object_set_new(document, "loads", r->loads);
	json_object_set_new(document, "slow", r->slow);
	json_object_set_new(document, "files", files);
	json_object_set_new(document, "sites", number(session_sites(r->session)));
	json_object_set_new(document, "missing", text(session_missing(r->session)));
	json_dumpf(document, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
	putchar('\n');
	json_decref(document);
}

void report_error(bool json, const struct lat_error *err)
{
	if (json) {
		json_t *document = lat_checked(
			json_pack("{s:{s:i, s:o}}", "error", "code", err->status, "message", text(err->text)));
		json_dumpf(document, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);
		putchar('\n');
		json_decref(document);
	}
	fprintf(stderr, "ipc-cache-lat: %s\n", err->text);
}
