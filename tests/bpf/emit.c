/*
 * Fires one probe of the catalogue at a steady rate, and counts: emit RATE SECONDS THREADS. Prints how many and in how many
 * nanoseconds. Or, as a driver's library would while an engine connects, calls ioctl on a character device: emit ioctl.
 */
#include "bpf/probes.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

static double rate, seconds;

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void *emit(void *count)
{
	uint64_t begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9), done = 0, now;
	while ((now = now_ns()) < end) {
		/* What is due by now, so that a late start is caught up with. */
		uint64_t due = (uint64_t)((double)(now - begin) * rate / 1e9);
		for (; done < due && now_ns() < end; done++)
			PROBE_UPLOAD_SUBMITTED(done, 0, 1);
	}
	*(uint64_t *)count = done;
	return NULL;
}

static int call_device(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	PROBE_CONNECT_STARTED(1);
	int r = ioctl(fd, 0x4629, NULL);
	PROBE_CONNECT_FINISHED(1, 0);
	return fd < 0 || r != -1; /* it knows no such command */
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "ioctl") == 0)
		return call_device();
	uint64_t counts[64] = {0}, sum = 0;
	pthread_t threads[64];
	int thread_count = argc == 4 ? atoi(argv[3]) : 0;
	if (thread_count < 1 || thread_count > 64)
		return 2;
	rate = atof(argv[1]) / thread_count;
	seconds = atof(argv[2]);
	uint64_t begin = now_ns();
	for (int i = 0; i < thread_count; i++)
		if (pthread_create(&threads[i], NULL, emit, &counts[i]) != 0)
			return 1;
	for (int i = 0; i < thread_count; i++) {
		pthread_join(threads[i], NULL);
		sum += counts[i];
	}
	printf("%" PRIu64 " %" PRIu64 "\n", sum, now_ns() - begin);
	return 0;
}
