/*
 * One unit: which way it is read, how, and what becomes of its bytes. See work.h.
 *
 * Whatever the way, bytes are hashed and written piece by piece from where they were read: the reader's buffer, the mapping
 * of the file, or the worker's own piece of memory. Where a device takes them by itself they are read into a pinned buffer,
 * hashed there, and sent from there.
 */
#include "loader/work.h"

#include "bpf/probes.h"
#include "loader/guard.h"
#include "loader/residency.h"
#include "loader/scatter.h"
#include "loader/shown.h"
#include "manifest/bytes.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

/* From here on a unit is taken from the page cache: mapped, or read through it, which needs no second look at holes. */
#define MAPPED_PERCENT	 95
#define BUFFERED_PERCENT 50

static const struct safetensors *header_of(const struct worker *worker, const struct job *job)
{
	return &worker->fill->cp->files[job->unit.file].header;
}

/* ---- the way ---- */

/* What was read ahead the other way counts for the one that is measured: it is kept short. */
#define MEASURED_WINDOW 2

static enum fill_path choose(struct worker *worker, struct job *job, bool *wait)
{
	static const enum fill_path forced[] = {
		[FILL_DIRECT] = PATH_DIRECT, [FILL_BUFFERED] = PATH_BUFFERED, [FILL_MMAP] = PATH_MAPPED};
	const struct fill_options *options = worker->fill->options;

	if (options->io != FILL_AUTO)
		return forced[options->io];
	/* Asking would cost a tenth of the time that reading takes. */
	if (job->file->in_memory)
		return PATH_MAPPED;
	unsigned percent = residency_percent(job->file->fd, job->unit.begin, job->unit.bytes, false);
	if (percent >= MAPPED_PERCENT)
		return PATH_MAPPED;
	if (percent >= BUFFERED_PERCENT || options->shared)
		return PATH_BUFFERED;
	/* A unit that has waited has been asked for already. */
	if (!job->asked)
		job->way = choice_begin(&worker->fill->choice, header_of(worker, job)->source.device, &job->measured);
	job->asked = true;
	*wait = job->measured && job->way == WAY_BUFFERED && worker->count >= MEASURED_WINDOW;
	return job->way == WAY_DIRECT ? PATH_DIRECT : PATH_BUFFERED;
}

/* Starts the read of the aligned superset; without O_DIRECT the unit is read through the page cache. */
static int begin_direct(struct worker *worker, struct job *job, struct ipcc_error *err)
{
	uint64_t alignment = shards_use_direct(&worker->fill->files, job->file);

	if (alignment == 0) {
		job->path = PATH_BUFFERED;
		worker->refused_bytes += job->unit.bytes;
		return 0;
	}
	int r = work_make_reader(worker, err);
	if (r == 0)
		r = pool_settle(&worker->pool, job->slot, err);
	if (r != 0)
		return r;
	uint64_t end = align_up(job->unit.begin + job->unit.bytes, alignment);
	job->read_begin = job->unit.begin & ~(alignment - 1);
	reader_start(worker->reader, job->slot, job->file->direct_fd, job->read_begin, end - job->read_begin);
	return 0;
}

int job_begin(struct worker *worker, struct job *job, bool *wait, struct ipcc_error *err)
{
	int r = shards_use(&worker->fill->files, job->unit.file, &job->file, err);

	*wait = false;
	if (r != 0)
		return r;
	job->path = choose(worker, job, wait);
	if (*wait)
		return 0;
	/* Jobs end in the order of their beginning, so the slots come free in turn. */
	job->slot = worker->next_slot;
	worker->next_slot = (worker->next_slot + 1) % worker->fill->window;
	if (job->path == PATH_DIRECT)
		r = begin_direct(worker, job, err);
	/* Reading ahead. For what is there it would only cost time. */
	if (r == 0 && job->path == PATH_BUFFERED)
		posix_fadvise(job->file->fd, (off_t)job->unit.begin, job->unit.bytes, POSIX_FADV_WILLNEED);
	return r;
}

/* ---- the bytes ---- */

struct taking {
	struct worker *worker;
	const struct job *job;
	const uint8_t *from;
	uint64_t begin, bytes; /* of the file */
	struct ipcc_error *err;
};

static int take_piece(void *context, uint32_t segment, uint64_t offset, const uint8_t *from, uint64_t bytes)
{
	struct taking *t = context;
	struct fill *fill = t->worker->fill;

	if (!fill->options->no_hash)
		digest_add(&t->worker->cursor, segment, offset, from, bytes);
	if (t->worker->sends)
		return 0;
	return fill->sink->write(fill->sink->context, segment, offset, from, bytes, t->err);
}

/* Hashes what is at t->from, in pieces, and writes it, if it is not sent. */
static int take(void *context)
{
	struct taking *t = context;
	struct fill *fill = t->worker->fill;
	bool hash = fill->units.file_whole[t->job->unit.file] && !fill->options->no_hash;

	for (uint64_t done = 0; done < t->bytes; done += WORK_PIECE_BYTES) {
		uint64_t left = t->bytes - done;
		uint64_t piece = left < WORK_PIECE_BYTES ? left : WORK_PIECE_BYTES;
		if (hash)
			checksum_add(t->worker->file_sum, t->from + done, piece);
		int r = scatter(fill->plan, t->job->unit.file, t->begin + done, piece, t->from + done, take_piece, t);
		if (r != 0)
			return r;
	}
	return 0;
}

static int read_failed(struct worker *worker, const struct job *job, int error, struct ipcc_error *err)
{
	const char *path = header_of(worker, job)->path;
	uint64_t end = job->unit.begin + job->unit.bytes;

	if (error == ENODATA)
		return fail(err, IPCC_INVALID, "%s: changed while being read: it ends before offset %" PRIu64 " now",
			    shown(path), end);
	return fail_errno(err, error, "%s: reading %u bytes at offset %" PRIu64, shown(path), job->unit.bytes,
			  job->unit.begin);
}

/* Piece by piece, each hashed while the caches hold it. */
static int finish_buffered(struct worker *worker, const struct job *job, struct ipcc_error *err)
{
	struct taking t = {.worker = worker, .job = job, .err = err};
	uint8_t *buffer = NULL;
	int r = 0;

	if (worker->sends) {
		r = work_make_pool(worker, err);
		if (r == 0)
			r = pool_settle(&worker->pool, job->slot, err);
		if (r == 0)
			buffer = pool_buffer(&worker->pool, job->slot);
	}
	for (uint64_t done = 0; r == 0 && done < job->unit.bytes; done += t.bytes) {
		uint8_t *to = worker->sends ? buffer + done : worker->piece;
		t.from = to;
		t.begin = job->unit.begin + done;
		t.bytes = job->unit.bytes - done < WORK_PIECE_BYTES ? job->unit.bytes - done : WORK_PIECE_BYTES;
		PROBE_READ_SUBMITTED(to, PATH_BUFFERED, job->file->fd, t.begin, t.bytes);
		r = fd_read_exact(job->file->fd, to, t.bytes, t.begin);
		PROBE_READ_COMPLETED(to, PATH_BUFFERED, r < 0 ? r : (int64_t)t.bytes);
		if (r < 0)
			return read_failed(worker, job, -r, err);
		r = take(&t);
	}
	return r == 0 && worker->sends ? work_send(worker, job, buffer, err) : r;
}

static int finish_direct(struct worker *worker, struct job *job, struct ipcc_error *err)
{
	uint64_t skip = job->unit.begin - job->read_begin;
	struct taking t = {.worker = worker,
			   .job = job,
			   .from = reader_buffer(worker->reader, job->slot) + skip,
			   .begin = job->unit.begin,
			   .bytes = job->unit.bytes,
			   .err = err};

	uint64_t before = work_now_ns();
	ssize_t got = reader_wait(worker->reader, job->slot);
	job->waited_ns = work_now_ns() - before;
	bool refused = got == -EINVAL || got == -EOPNOTSUPP;
	if (refused || (got >= 0 && (uint64_t)got < skip + job->unit.bytes)) {
		/* Some file systems refuse O_DIRECT only when it is used. Others end too early: the page cache knows. */
		if (refused)
			shards_refuse_direct(&worker->fill->files, job->file);
		worker->refused_bytes += job->unit.bytes;
		job->path = PATH_BUFFERED;
		return finish_buffered(worker, job, err);
	}
	if (got < 0)
		return read_failed(worker, job, (int)-got, err);
	int r = take(&t);
	if (r != 0 || !worker->sends)
		return r;
	return work_send(worker, job, t.from, err);
}

/* Why could the mapping not be read? */
static int mapping_failed(struct worker *worker, const struct job *job, struct ipcc_error *err)
{
	struct source now;
	bool shorter = source_stat(job->file->fd, &now) == 0 && now.bytes < job->unit.begin + job->unit.bytes;

	return read_failed(worker, job, shorter ? ENODATA : EIO, err);
}

static int finish_mapped(struct worker *worker, struct job *job, struct ipcc_error *err)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t skip = job->unit.begin % page, bytes = skip + job->unit.bytes;

	/* A driver must not meet the end of a truncated file: what a device gets is read into memory. */
	if (worker->sends)
		return finish_buffered(worker, job, err);
	/* Not MAP_POPULATE: where a FUSE file system answers EIO, Linux 6.18 repeats that for ever. */
	void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, job->file->fd, (off_t)(job->unit.begin - skip));
	if (map == MAP_FAILED) {
		job->path = PATH_BUFFERED;
		return finish_buffered(worker, job, err);
	}
	struct taking t = {.worker = worker,
			   .job = job,
			   .from = (const uint8_t *)map + skip,
			   .begin = job->unit.begin,
			   .bytes = job->unit.bytes,
			   .err = err};
	PROBE_READ_SUBMITTED(map, PATH_MAPPED, job->file->fd, t.begin, t.bytes);
	int r = guard_run(map, bytes, take, &t);
	PROBE_READ_COMPLETED(map, PATH_MAPPED, r != 0 ? -EIO : (int64_t)t.bytes);
	munmap(map, bytes);
	if (r == -EFAULT || (r == IPCC_FAILED && err->sys_errno == EFAULT))
		return mapping_failed(worker, job, err);
	return r;
}

/* ---- the end ---- */

static void book_progress(struct fill *fill, uint64_t bytes)
{
	const struct fill_options *options = fill->options;

	pthread_mutex_lock(&fill->progress_lock);
	pthread_mutex_lock(&fill->lock);
	fill->done_bytes += bytes;
	uint64_t done = fill->done_bytes;
	pthread_mutex_unlock(&fill->lock);
	if (options->progress != NULL)
		options->progress(options->context, done, fill->units.bytes);
	pthread_mutex_unlock(&fill->progress_lock);
}

int job_finish(struct worker *worker, struct job *job, struct ipcc_error *err)
{
	static int (*const finish[])(struct worker *, struct job *, struct ipcc_error *) = {
		[PATH_DIRECT] = finish_direct, [PATH_BUFFERED] = NULL, [PATH_MAPPED] = finish_mapped};
	struct fill *fill = worker->fill;
	uint32_t file = job->unit.file;
	bool hash = fill->units.file_whole[file] && !fill->options->no_hash;

	if (hash)
		checksum_restart(worker->file_sum);
	digest_begin(&worker->cursor, job->extent);
	int r = finish[job->path] != NULL ? finish[job->path](worker, job, err) : finish_buffered(worker, job, err);
	if (r != 0)
		return r;
	if (hash) {
		job->file->blocks[job->unit.begin / HASH_BLOCK_BYTES] = checksum_hash(worker->file_sum);
		PROBE_UNIT_HASHED(file, job->unit.begin, job->unit.bytes);
	}
	if (job->ends_extent)
		digest_end(&worker->cursor);
	if (job->asked)
		choice_done(&fill->choice, header_of(worker, job)->source.device, job->way, job->unit.bytes,
			    job->waited_ns, work_now_ns());
	worker->path_bytes[job->path] += job->unit.bytes;
	book_progress(fill, job->unit.bytes);
	return shards_done(&fill->files, file, &fill->result->files[file], err);
}
