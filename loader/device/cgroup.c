/*
 * See cgroup.h. /proc/self/cgroup says where this process is in each hierarchy, /proc/self/mountinfo where (and from which
 * cgroup on) the hierarchies are visible. The process's path minus the mount's root is the path below the mount point;
 * where they have nothing in common (a cgroup outside the namespace), the mount point itself is the best answer.
 */
#include "loader/device/cgroup.h"

#include "manifest/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_TEXT_BYTES ((size_t)4 << 20)

/* What differs between the versions. */
struct hierarchy {
	const char *type;   /* of its file system */
	const char *option; /* that its mount has, or NULL */
	const char *limits[2];
	const char *usage;
	const char *reclaimable; /* a line of memory.stat, with descendants */
};

static const struct hierarchy v1 = {
	"cgroup", "memory", {"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file ",
};
/* Above memory.high a process is slowed down until it hardly moves: a limit as well. */
static const struct hierarchy v2 = {
	"cgroup2", NULL, {"memory.max", "memory.high"}, "memory.current", "inactive_file ",
};

char *cgroup_read_text(const char *root, const char *path)
{
	cleanup_free char *full = NULL;
	cleanup_free char *text = NULL;
	size_t used = 0, room = 0;

	if (asprintf(&full, "%s%s", root, path) < 0) {
		full = NULL;
		return NULL;
	}
	cleanup_fd int fd = open(full, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	/* Files of /proc have no size beforehand. */
	for (;;) {
		if (room - used < 2) {
			room = room != 0 ? 2 * room : 8192;
			char *larger = room <= MAX_TEXT_BYTES ? realloc(text, room) : NULL;
			if (larger == NULL)
				return NULL;
			text = larger;
		}
		ssize_t got = read(fd, text + used, room - used - 1);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return NULL;
		if (got == 0)
			break;
		used += (size_t)got;
	}
	text[used] = '\0';
	char *taken = text;
	text = NULL;
	return taken;
}

/* The number in folder/file; false when there is none ("max"). */
static bool read_number(const char *root, const char *folder, const char *file, uint64_t *number)
{
	char path[4096];
	char *end;

	if (snprintf(path, sizeof(path), "%s/%s", folder, file) >= (int)sizeof(path))
		return false;
	cleanup_free char *text = cgroup_read_text(root, path);
	if (text == NULL || text[0] < '0' || text[0] > '9')
		return false;
	*number = strtoull(text, &end, 10);
	return true;
}

/* Page cache of the cgroup that can be dropped. */
static uint64_t read_reclaimable(const char *root, const char *folder, const char *line)
{
	char path[4096];

	if (snprintf(path, sizeof(path), "%s/memory.stat", folder) >= (int)sizeof(path))
		return 0;
	cleanup_free char *text = cgroup_read_text(root, path);
	const char *at = text;
	while (at != NULL) {
		if (strncmp(at, line, strlen(line)) == 0)
			return strtoull(at + strlen(line), NULL, 10);
		at = strchr(at, '\n');
		if (at != NULL)
			at++;
	}
	return 0;
}

static void report_folder(const char *root, const char *folder, const struct hierarchy *h, cgroup_limit_fn *found,
			  void *context)
{
	uint64_t limit, usage;
	char file[4096];

	if (!read_number(root, folder, h->usage, &usage))
		return;
	uint64_t reclaimable = read_reclaimable(root, folder, h->reclaimable);
	uint64_t needed = usage > reclaimable ? usage - reclaimable : 0;
	for (size_t i = 0; i < 2 && h->limits[i] != NULL; i++) {
		if (!read_number(root, folder, h->limits[i], &limit))
			continue;
		if (snprintf(file, sizeof(file), "%s/%s", folder, h->limits[i]) < (int)sizeof(file))
			found(context, limit > needed ? limit - needed : 0, limit, file);
	}
}

/* From mount + below up to mount. */
static void report_ancestors(const char *root, const char *mount, const char *below, const struct hierarchy *h,
			     cgroup_limit_fn *found, void *context)
{
	cleanup_free char *folder = NULL;

	if (asprintf(&folder, "%s%s", mount, below) < 0) {
		folder = NULL;
		return;
	}
	size_t mount_length = strlen(mount);
	for (;;) {
		size_t length = strlen(folder);
		while (length > mount_length && folder[length - 1] == '/')
			folder[--length] = '\0';
		report_folder(root, folder, h, found, context);
		if (length <= mount_length)
			return;
		*strrchr(folder, '/') = '\0';
	}
}

/* Is `word` one of the comma-separated `list`? */
static bool list_has(const char *list, const char *word)
{
	size_t length = strlen(word);

	for (;;) {
		if (strncmp(list, word, length) == 0 && (list[length] == ',' || list[length] == '\0'))
			return true;
		list = strchr(list, ',');
		if (list == NULL)
			return false;
		list++;
	}
}

/* mountinfo writes space, tab, newline and backslash as \ooo. In place. */
static void unescape(char *text)
{
	char *to = text;

	for (const char *at = text; *at != '\0'; to++) {
		if (at[0] == '\\' && at[1] >= '0' && at[1] <= '3' && at[2] >= '0' && at[2] <= '7' && at[3] >= '0' &&
		    at[3] <= '7') {
			*to = (char)((at[1] - '0') * 64 + (at[2] - '0') * 8 + (at[3] - '0'));
			at += 4;
		} else {
			*to = *at++;
		}
	}
	*to = '\0';
}

/* What is left of the cgroup `path` below the mount of `mount_root`; NULL when it is not below. */
static const char *path_below(const char *path, const char *mount_root)
{
	size_t length = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);

	if (strncmp(path, mount_root, length) != 0 || (path[length] != '/' && path[length] != '\0'))
		return NULL;
	/* A path with ".." is outside of the cgroup namespace. */
	return strstr(path + length, "/..") != NULL ? NULL : path + length;
}

/* Splits a line of mountinfo, if it mounts `h`: `36 35 0:32 ROOT POINT opts ... - TYPE SOURCE OPTIONS`. */
static bool parse_mount(char *line, const struct hierarchy *h, char **mount_root, char **point)
{
	char *fields[5], *save, *separator = strstr(line, " - ");

	if (separator == NULL)
		return false;
	*separator = '\0';
	char *type = strtok_r(separator + 3, " ", &save);
	char *source = strtok_r(NULL, " ", &save);
	char *options = strtok_r(NULL, " ", &save);
	if (type == NULL || source == NULL || options == NULL || strcmp(type, h->type) != 0 ||
	    (h->option != NULL && !list_has(options, h->option)))
		return false;
	for (size_t i = 0; i < 5; i++) {
		fields[i] = strtok_r(i == 0 ? line : NULL, " ", &save);
		if (fields[i] == NULL)
			return false;
	}
	unescape(fields[3]);
	unescape(fields[4]);
	*mount_root = fields[3];
	*point = fields[4];
	return true;
}

static void report_hierarchy(const char *root, const char *path, const struct hierarchy *h, cgroup_limit_fn *found,
			     void *context)
{
	cleanup_free char *mounts = cgroup_read_text(root, "/proc/self/mountinfo");
	const char *fallback = NULL;
	char *save, *mount_root, *point;

	if (mounts == NULL)
		return;
	for (char *line = strtok_r(mounts, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
		if (!parse_mount(line, h, &mount_root, &point))
			continue;
		const char *below = path_below(path, mount_root);
		if (below != NULL) {
			report_ancestors(root, point, below, h, found, context);
			return;
		}
		if (fallback == NULL)
			fallback = point;
	}
	if (fallback != NULL)
		report_ancestors(root, fallback, "", h, found, context);
}

void cgroup_limits(const char *root, cgroup_limit_fn *found, void *context)
{
	cleanup_free char *cgroups = cgroup_read_text(root, "/proc/self/cgroup");
	char *save;

	if (cgroups == NULL)
		return;
	/* `4:memory:/path` in v1, `0::/path` in v2 */
	for (char *line = strtok_r(cgroups, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
		char *controllers = strchr(line, ':');
		char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
		if (path == NULL)
			continue;
		*path++ = '\0';
		controllers++;
		if (controllers[0] == '\0')
			report_hierarchy(root, path, &v2, found, context);
		else if (list_has(controllers, "memory"))
			report_hierarchy(root, path, &v1, found, context);
	}
}
