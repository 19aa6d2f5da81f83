/*
 * The journal: what neither the fds nor the manifests say, in an append-only memfd: which models are resident and in what
 * state, which connection holds which lease, what is charged for memory that is evicted but still mapped. Together with
 * the fds it is all that a new broker needs to carry on.
 *
 * Records are fixed-size and checksummed; replaying stops at the first damaged one (a record that was being written when
 * the process was killed). A record is written before the reply that promises what it says. The journal is rewritten into
 * a new memfd when most of it is history, so that it stays small however many attaches there are.
 */
#ifndef IPCC_BROKER_JOURNAL_H
#define IPCC_BROKER_JOURNAL_H

#include "manifest/bytes.h"
#include "manifest/error.h"

#include <sys/types.h>

enum journal_kind {
	JOURNAL_READY = 1,     /* model, generation; conn: its publisher's, so that COMMIT can be repeated */
	JOURNAL_DRAINING = 2,  /* model */
	JOURNAL_DROPPED = 3,   /* model: its fds are closed; owner, segments and bytes stay charged */
	JOURNAL_GONE = 4,      /* model */
	JOURNAL_LEASE = 5,     /* conn, model, since_ns; request: so that ATTACH can be repeated */
	JOURNAL_LEASE_END = 6, /* conn */
	JOURNAL_KEPT = 7,      /* as READY; conn keeps it: it has no segment fds, and goes with that connection */
};

struct journal_record {
	le32 kind;
	le32 owner_uid;
	le64 model;
	le64 conn;
	le64 value; /* generation, since_ns or bytes, by kind */
	le32 segments;
	le32 request;
	le64 checksum; /* XXH3-64 of what stands before it */
};
_Static_assert(sizeof(struct journal_record) == 48, "journal_record outlives the process that wrote it");

struct journal;

/* `snapshot` writes the whole living state with journal_append; called with `context` when the journal is rewritten. */
struct journal *journal_new(void (*snapshot)(struct journal *journal, void *context), void *context,
			    struct ipcc_error *err);
void journal_free(struct journal *journal);
/* The memfd now in use; it changes when the journal is rewritten. */
int journal_fd(const struct journal *journal);

/* The checksum is filled in. IPCC_NO_MEMORY or IPCC_FAILED: nothing was promised, nothing may be replied. */
int journal_append(struct journal *journal, struct journal_record record, struct ipcc_error *err);

/* Hands every whole record of a journal to `apply`, in order. The number of records, or a negative errno. */
ssize_t journal_replay(int fd, void (*apply)(const struct journal_record *record, void *context), void *context);

#endif
