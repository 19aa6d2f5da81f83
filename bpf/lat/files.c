/* See files.h. A file is known by device and inode; what cannot be looked at (others' processes, without the privilege) is
 * passed over. */
#include "bpf/lat/files.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIBRARY "libipc_cache.so"

static bool add(struct lat_files *files, const char *path, const char *name)
{
	struct stat facts;
	if (stat(path, &facts) != 0 || !S_ISREG(facts.st_mode))
		return false;
	for (unsigned i = 0; i < files->count; i++)
		if (files->files[i].device == facts.st_dev && files->files[i].inode == facts.st_ino)
			return true;
	files->files = lat_checked(realloc(files->files, (files->count + 1) * sizeof(*files->files)));
	files->files[files->count++] = (struct lat_file){.path = lat_checked(strdup(path)),
							 .name = lat_checked(strdup(name)),
							 .device = facts.st_dev,
							 .inode = facts.st_ino};
	return true;
}

int files_add(struct lat_files *files, const char *path, struct lat_error *err)
{
	errno = 0;
	if (add(files, path, path))
		return LAT_OK;
	return lat_fail(err, LAT_NOT_FOUND, "--file %s: %s", lat_shown(path),
			errno != 0 ? strerror(errno) : "not a regular file");
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash == NULL ? path : slash + 1;
}

/* The running program, if it is one of ours by its name. */
static void look_at_program(struct lat_files *files, const char *pid)
{
	char link[64], target[PATH_MAX];
	snprintf(link, sizeof(link), "/proc/%.20s/exe", pid);
	ssize_t length = readlink(link, target, sizeof(target) - 1);
	if (length <= 0)
		return;
	target[length] = '\0';
	char *gone = strstr(target, " (deleted)");
	if (gone != NULL)
		*gone = '\0';
	if (strcmp(base_name(target), "ipc-cached") == 0 || strcmp(base_name(target), "ipc-cache") == 0)
		add(files, link, target);
}

/* The library, by its first mapping: the mapping itself leads to the file, whatever its path means elsewhere. */
static void look_at_libraries(struct lat_files *files, const char *pid)
{
	char path[64], line[PATH_MAX + 256], *name;
	snprintf(path, sizeof(path), "/proc/%.20s/maps", pid);
	FILE *maps = fopen(path, "re");
	while (maps != NULL && fgets(line, sizeof(line), maps) != NULL) {
		unsigned long long from, to;
		char way[PATH_MAX + 64];
		if ((name = strchr(line, '/')) == NULL || strncmp(base_name(name), LIBRARY, strlen(LIBRARY)) != 0 ||
		    sscanf(line, "%llx-%llx", &from, &to) != 2)
			continue;
		name[strcspn(name, "\n")] = '\0';
		snprintf(way, sizeof(way), "/proc/%.20s/map_files/%llx-%llx", pid, from, to);
		if (add(files, way, name))
			continue;
		snprintf(way, sizeof(way), "/proc/%.20s/root%s", pid, name);
		add(files, way, name);
	}
	if (maps != NULL)
		fclose(maps);
}

static void look_at_processes(struct lat_files *files)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	while (proc != NULL && (entry = readdir(proc)) != NULL) {
		if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
			continue;
		look_at_program(files, entry->d_name);
		look_at_libraries(files, entry->d_name);
	}
	if (proc != NULL)
		closedir(proc);
}

static void look_into(struct lat_files *files, const char *folder)
{
	static const char *const names[] = {"ipc-cached", "ipc-cache", LIBRARY, LIBRARY ".0"};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char path[PATH_MAX], real[PATH_MAX];
		if ((size_t)snprintf(path, sizeof(path), "%s/%s", folder, names[i]) < sizeof(path) &&
		    realpath(path, real) != NULL)
			add(files, real, real);
	}
}

/* Beside this program, in the places of an installation, and where the environment says. */
static void look_at_places(struct lat_files *files)
{
	static const char *const places[] = {"/usr/local/sbin", "/usr/local/bin",    "/usr/local/lib",
					     "/usr/sbin",	"/usr/bin",	     "/usr/lib",
					     "/usr/lib64",	"/opt/ipc-cache/lib"};
	static const char *const beside[] = {"", "/../sbin", "/../bin", "/../lib"};
	char own[PATH_MAX / 2], folder[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);
	if (length > 0) {
		own[length] = '\0';
		own[base_name(own) - own - 1] = '\0';
		for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++) {
			snprintf(folder, sizeof(folder), "%s%s", own, beside[i]);
			look_into(files, folder);
		}
	}
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		look_into(files, places[i]);
	const char *variables[] = {getenv("LD_LIBRARY_PATH"), getenv("PATH")};
	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
		char *list = variables[i] != NULL ? lat_checked(strdup(variables[i])) : NULL, *rest;
		for (char *one = list != NULL ? strtok_r(list, ":", &rest) : NULL; one != NULL;
		     one = strtok_r(NULL, ":", &rest))
			look_into(files, one);
		free(list);
	}
}

void files_find(struct lat_files *files)
{
	look_at_processes(files);
	look_at_places(files);
}

void files_fini(struct lat_files *files)
{
	for (unsigned i = 0; i < files->count; i++) {
		free(files->files[i].path);
		free(files->files[i].name);
	}
	free(files->files);
	*files = (struct lat_files){0};
}
