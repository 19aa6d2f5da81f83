/* Appends, replays and rewrites; see journal.h. */
#include "broker/journal.h"

#include "manifest/fail.h"
#include "manifest/fd.h"
#include "manifest/hash.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

/* 1.5 MiB of records; a rewrite costs less than a millisecond up to there. */
#define REWRITE_RECORDS 32768

struct journal {
	int fd;
	uint64_t records;
	uint64_t rewrite_at;
	bool rewriting;
	void (*snapshot)(struct journal *journal, void *context);
	void *context;
};

static uint64_t record_checksum(const struct journal_record *record)
{
	return hash_name(record, offsetof(struct journal_record, checksum), 0);
}

struct journal *journal_new(void (*snapshot)(struct journal *journal, void *context), void *context,
			    struct ipcc_error *err)
{
	struct journal *journal = calloc(1, sizeof(*journal));
	int fd = memfd_create("ipc-cache-journal", MFD_CLOEXEC);
	if (journal == NULL || fd < 0) {
		fail_errno(err, errno, "cannot create the journal");
		fd_close(&fd);
		free(journal);
		return NULL;
	}
	*journal = (struct journal){.fd = fd, .rewrite_at = REWRITE_RECORDS, .snapshot = snapshot, .context = context};
	return journal;
}

void journal_free(struct journal *journal)
{
	if (journal == NULL)
		return;
	fd_close(&journal->fd);
	free(journal);
}

int journal_fd(const struct journal *journal)
{
	return journal->fd;
}

/* Into a new memfd; the old one stays in use when that fails, and only grows a little more. */
static void journal_rewrite(struct journal *journal)
{
	int fd = memfd_create("ipc-cache-journal", MFD_CLOEXEC);
	if (fd < 0)
		return;
	struct journal before = *journal;
	journal->fd = fd;
	journal->records = 0;
	journal->rewriting = true;
	journal->snapshot(journal, journal->context);
	bool failed = !journal->rewriting;
	journal->rewriting = false;
	if (failed) {
		fd_close(&journal->fd);
		*journal = before;
		journal->rewrite_at += REWRITE_RECORDS;
		return;
	}
	fd_close(&before.fd);
	journal->rewrite_at = 4 * journal->records + REWRITE_RECORDS;
}

int journal_append(struct journal *journal, struct journal_record record, struct ipcc_error *err)
{
	/* Before the record, not after: callers write it and then change the state of which the snapshot is taken. Repeated
	 * by the record, the snapshot's entry is the same; the other way round it would contradict it. */
	if (!journal->rewriting && journal->records >= journal->rewrite_at)
		journal_rewrite(journal);
	record.checksum = le64_make(record_checksum(&record));
	int rc = fd_write_exact(journal->fd, &record, sizeof(record), journal->records * sizeof(record));
	if (rc < 0) {
		journal->rewriting = false;
		return fail_errno(err, -rc, "the broker cannot write its journal");
	}
	journal->records++;
	return IPCC_OK;
}

ssize_t journal_replay(int fd, void (*apply)(const struct journal_record *record, void *context), void *context)
{
	struct journal_record record;
	for (uint64_t n = 0;; n++) {
		int rc = fd_read_exact(fd, &record, sizeof(record), n * sizeof(record));
		if (rc == -ENODATA || (rc == 0 && le64_get(record.checksum) != record_checksum(&record)))
			return (ssize_t)n;
		if (rc < 0)
			return rc;
		apply(&record, context);
	}
}
