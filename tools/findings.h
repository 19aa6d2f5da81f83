/* What `doctor` finds, one finding a line, and the checks that find it. */
#ifndef IPCC_TOOLS_FINDINGS_H
#define IPCC_TOOLS_FINDINGS_H

#include "tools/options.h"

#include <stddef.h>

enum finding_level { FINDING_OK, FINDING_WARN, FINDING_FAIL };

struct finding {
	enum finding_level level;
	const char *name;
	char *text;
	char *remedy; /* NULL: there is nothing to do */
};

#define FINDINGS_MAX 32

struct findings {
	size_t count;
	struct finding entries[FINDINGS_MAX];
};

/* Takes over `text` and `remedy`, which format_text made; `remedy` may be NULL. */
void findings_add(struct findings *f, enum finding_level level, const char *name, char *text, char *remedy);

/* What the kernel offers and the limits allow. */
void check_machine(struct findings *f);
/* The GPUs and their drivers. */
void check_devices(struct findings *f);
/* The broker's directory and the broker. */
void check_broker(struct findings *f, const struct common *common);

#endif
