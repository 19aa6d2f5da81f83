/* Paths of source files: what a manifest, or an index, may call a file. */
#ifndef IPCC_MANIFEST_PATH_H
#define IPCC_MANIFEST_PATH_H

#include <stdbool.h>

/* Is it relative, and does it stay inside the folder it is relative to? In one spelling only: a/b, never /a, a//b, a/, ./a
 * or a/../b, and not empty. */
bool path_stays_inside(const char *path);

#endif
