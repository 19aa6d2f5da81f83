/* A progress bar; see progress.h. */
#include "tools/progress.h"

#include "tools/clock.h"
#include "tools/text.h"

#include <stdio.h>
#include <unistd.h>

#define BAR_COLUMNS   30
#define SHOW_EVERY_NS 100000000
#define ERASE_LINE    "\r\033[K"
/* A rate measured over less tells nothing of the time left. */
#define RATE_AFTER_NS 500000000

void progress_init(struct progress *p)
{
	*p = (struct progress){.terminal = isatty(STDERR_FILENO) == 1, .start_ns = clock_ns()};
}

void progress_show(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
	struct progress *p = context;
	uint64_t now_ns = clock_ns(), spent_ns = now_ns - p->start_ns;
	if (!p->terminal || total_bytes == 0 || now_ns - p->shown_ns < SHOW_EVERY_NS)
		return;
	double part = (double)done_bytes / (double)total_bytes;
	int filled = (int)(part * BAR_COLUMNS);
	fprintf(stderr, ERASE_LINE "[%.*s%*s] %3.0f %%  %s of %s  %s", filled, "##############################",
		BAR_COLUMNS - filled, "", part * 100, text_size(done_bytes).text, text_size(total_bytes).text,
		text_rate(done_bytes, spent_ns).text);
	if (spent_ns >= RATE_AFTER_NS && part > 0)
		fprintf(stderr, "  %s left", text_duration((uint64_t)((double)spent_ns * (1 - part) / part)).text);
	fflush(stderr);
	p->shown_ns = now_ns;
	p->shown = true;
}

void progress_fini(struct progress *p)
{
	if (p->shown)
		fputs(ERASE_LINE, stderr);
}
