/* See seam.h. */
#include "loader/seam.h"

#include <errno.h>
#include <stdlib.h>

int seam_init(struct seam *seam, uint32_t segment, uint64_t block)
{
	*seam = (struct seam){.segment = segment, .block = block, .exists = true, .sum = checksum_new()};
	if (seam->sum == NULL) {
		seam->exists = false;
		return -ENOMEM;
	}
	pthread_mutex_init(&seam->lock, NULL);
	return 0;
}

void seam_fini(struct seam *seam)
{
	checksum_free(seam->sum);
	free(seam->held);
	pthread_mutex_destroy(&seam->lock);
}

static void swap(struct seam *seam, struct checksum **sum)
{
	struct checksum *given = *sum;

	*sum = seam->sum;
	seam->sum = given;
}

bool seam_leave_left(struct seam *seam, struct checksum **sum, uint64_t at)
{
	pthread_mutex_lock(&seam->lock);
	bool last = seam->right_done;
	seam->left_done = true;
	if (!last) {
		swap(seam, sum);
		seam->at = at;
	}
	pthread_mutex_unlock(&seam->lock);
	return last;
}

bool seam_enter_right(struct seam *seam, struct checksum **sum, uint64_t *at, uint64_t begin, uint64_t end,
		      bool may_hold)
{
	pthread_mutex_lock(&seam->lock);
	bool last = seam->left_done;
	if (last) {
		swap(seam, sum);
		*at = seam->at;
	} else {
		seam->held = may_hold ? calloc(1, end - begin) : NULL;
		seam->begin = begin;
		seam->end = end;
		seam->given_up = seam->held == NULL;
	}
	pthread_mutex_unlock(&seam->lock);
	return last;
}

bool seam_leave_right(struct seam *seam, struct checksum **sum, uint64_t *at)
{
	pthread_mutex_lock(&seam->lock);
	bool last = seam->left_done;
	seam->right_done = true;
	if (last) {
		swap(seam, sum);
		*at = seam->at;
	}
	pthread_mutex_unlock(&seam->lock);
	return last;
}
