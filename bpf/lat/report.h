/* What ipc-cache-lat prints: lines as things happen, tables, and one JSON document at the end. */
#ifndef LAT_REPORT_H
#define LAT_REPORT_H

#include "bpf/lat/files.h"
#include "bpf/lat/session.h"
#include "bpf/lat/starts.h"

struct report {
	bool json, histogram;
	const struct phases *phases;
	const struct starts_counts *counts;
	const struct session *session;
	const struct lat_files *files;
	uint64_t faults; /* in attaches */
	/* Of the JSON document; NULL without. */
	json_t *slow, *loads, *mismatches;
};

void report_init(struct report *report, bool json);
void report_slow(struct report *report, const struct attach *attach);
void report_load(struct report *report, const struct load *load);
void report_mismatch(struct report *report, const struct mismatch *mismatch);
/* All phases so far. */
void report_table(const struct report *report);
void report_document(struct report *report);
/* Events that were lost, all kinds together. */
uint64_t report_lost(const struct session *session);
/* Prints the error; with JSON as a document too. */
void report_error(bool json, const struct lat_error *err);

#endif
