/* See choice.h. */
#include "loader/choice.h"

/* Buffered reads cost more of the processor, and the page cache other programs' pages: they have to be worth it. */
#define BUFFERED_PERCENT 110
/* Units of each worker: those that fill its pipeline do not count, the rest does. */
#define SKIPPED_UNITS  2
#define MEASURED_UNITS 4
/* Of all workers: what the slower way reads meanwhile is lost, and 128 MiB tell enough. */
#define MEASURED_MOST 32
/* Of the workers' time: without any waiting they could gain a quarter, and buffered reads cost them more than that. */
#define HARDLY_WAITED_PERCENT 20

void choice_init(struct choice *choice, unsigned workers)
{
	*choice = (struct choice){.workers = workers};
	pthread_mutex_init(&choice->lock, NULL);
}

void choice_fini(struct choice *choice)
{
	pthread_mutex_destroy(&choice->lock);
}

static struct choice_device *find(struct choice *choice, uint64_t device)
{
	for (unsigned i = 0; i < choice->count; i++) {
		if (choice->devices[i].device == device)
			return &choice->devices[i];
	}
	if (choice->count == CHOICE_MAX_DEVICES)
		return &choice->devices[CHOICE_MAX_DEVICES - 1];
	choice->devices[choice->count] = (struct choice_device){.device = device};
	return &choice->devices[choice->count++];
}

enum way choice_begin(struct choice *choice, uint64_t device, bool *measuring)
{
	pthread_mutex_lock(&choice->lock);
	struct choice_device *d = find(choice, device);
	enum way way = d->way;
	*measuring = !d->decided;
	d->direct_in_flight += way == WAY_DIRECT;
	pthread_mutex_unlock(&choice->lock);
	return way;
}

static void next_step(struct choice_device *d, bool waited)
{
	d->done = 0;
	if (d->way == WAY_DIRECT) {
		d->decided = !waited;
		d->way = waited ? WAY_BUFFERED : WAY_DIRECT;
		return;
	}
	bool buffered = d->rates[WAY_BUFFERED] / 100 * 100 > d->rates[WAY_DIRECT] / 100 * BUFFERED_PERCENT;
	/* A moment's disturbance must not decide for a whole load: the unlikely answer has to come twice. */
	d->decided = !buffered || d->confirming;
	d->confirming = buffered;
	d->way = buffered && d->decided ? WAY_BUFFERED : WAY_DIRECT;
}

static void measure(struct choice_device *d, unsigned workers, uint64_t bytes, uint64_t waited_ns, uint64_t now_ns)
{
	unsigned measured = MEASURED_UNITS * workers < MEASURED_MOST ? MEASURED_UNITS * workers : MEASURED_MOST;

	d->done++;
	if (d->done <= SKIPPED_UNITS * workers) {
		d->start_ns = now_ns;
		d->bytes = d->waited_ns = 0;
		return;
	}
	d->bytes += bytes;
	d->waited_ns += waited_ns;
	if (d->done < SKIPPED_UNITS * workers + measured || now_ns == d->start_ns)
		return;
	uint64_t rate = (uint64_t)((double)d->bytes * 1e9 / (double)(now_ns - d->start_ns));
	if (rate > d->rates[d->way])
		d->rates[d->way] = rate;
	next_step(d, d->waited_ns / workers * 100 >= (now_ns - d->start_ns) * HARDLY_WAITED_PERCENT);
}

void choice_done(struct choice *choice, uint64_t device, enum way way, uint64_t bytes, uint64_t waited_ns,
		 uint64_t now_ns)
{
	pthread_mutex_lock(&choice->lock);
	struct choice_device *d = find(choice, device);
	d->direct_in_flight -= way == WAY_DIRECT;
	if (!d->decided && way == d->way && (way == WAY_DIRECT || d->direct_in_flight == 0))
		measure(d, choice->workers, bytes, waited_ns, now_ns);
	pthread_mutex_unlock(&choice->lock);
}
