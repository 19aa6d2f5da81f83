/*
 * Past the page cache or through it? Measured for each device in the first moments of a load: O_DIRECT is the faster way to
 * most disks, but buffered reads can be half as fast again on virtual disks, whose hosts cache and read ahead.
 *
 * All workers read past it until the rate of a full pipeline is known. Who hardly waited for the disk then is kept busy by
 * what becomes of the bytes: no other way can be faster, and that is the answer. Else they read through it, and the faster
 * way is kept; that buffered reads are faster is measured twice. Nothing is read twice for it. Thread-safe.
 */
#ifndef IPCC_LOADER_CHOICE_H
#define IPCC_LOADER_CHOICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* More devices than this share the last one's choice. */
#define CHOICE_MAX_DEVICES 16

enum way { WAY_DIRECT, WAY_BUFFERED, WAY_COUNT };

struct choice_device {
	uint64_t device;
	bool decided;
	bool confirming;
	enum way way;		   /* chosen, or being measured */
	uint64_t rates[WAY_COUNT]; /* the best, in bytes per second, once measured */
	unsigned direct_in_flight; /* these disturb the measuring of the other way */
	unsigned done;		   /* units of the way being measured */
	uint64_t bytes, start_ns;  /* since the first that counts */
	uint64_t waited_ns;	   /* by all workers, meanwhile */
};

struct choice {
	pthread_mutex_t lock;
	unsigned workers;
	unsigned count;
	struct choice_device devices[CHOICE_MAX_DEVICES];
};

void choice_init(struct choice *choice, unsigned workers);
void choice_fini(struct choice *choice);

/* The way for the next unit of that device, of which choice_done will be told. *measuring: the way is being measured, so
 * its pipeline should be short. */
enum way choice_begin(struct choice *choice, uint64_t device, bool *measuring);
/* A unit of `bytes` bytes that choice_begin was asked about is done; its worker waited `waited_ns` for the disk. */
void choice_done(struct choice *choice, uint64_t device, enum way way, uint64_t bytes, uint64_t waited_ns,
		 uint64_t now_ns);

#endif
