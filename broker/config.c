/*
 * Reads the INI file through inih; see config.h.
 *
 * inih calls read_entry once per line; the first error is kept with its line and ends the reading.
 */
#include "broker/config.h"

#include "manifest/bytes.h"
#include "manifest/fail.h"

#include <errno.h>
#include <grp.h>
#include <ini.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ENTRIES 512

void config_defaults(struct config *config)
{
	*config = (struct config){
		.open = OPEN_OWNER,
		.limits = {.connections = 2048,
			   .models = 256,
			   .segments = 4096,
			   .bytes = 0,
			   .manifest_bytes = (uint64_t)1 << 30},
		.hello_ms = 5000,
		.idle_ms = 300000,
		.write_ms = 10000,
	};
}

const struct limits *config_limits(const struct config *config, uid_t uid)
{
	for (uint32_t i = 0; i < config->user_limit_count; i++)
		if (config->user_limits[i].uid == uid)
			return &config->user_limits[i].limits;
	return &config->limits;
}

static bool parse_number(const char *text, uint64_t max, uint64_t *value)
{
	char *end;
	errno = 0;
	unsigned long long parsed = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || errno != 0 || *end != '\0' || parsed > max)
		return false;
	*value = parsed;
	return true;
}

/* A number with K, M, G or T (powers of 1024), or "unlimited". */
static bool parse_bytes(const char *text, uint64_t *value)
{
	static const char units[] = "KMGT";
	char digits[32];
	size_t length = strlen(text);
	if (strcmp(text, "unlimited") == 0) {
		*value = 0;
		return true;
	}
	if (length == 0 || length >= sizeof(digits))
		return false;
	const char *unit = strchr(units, text[length - 1]);
	unsigned shift = unit == NULL ? 0 : 10 * (unsigned)(unit - units + 1);
	snprintf(digits, sizeof(digits), "%.*s", (int)(length - (unit != NULL)), text);
	uint64_t parsed;
	if (!parse_number(digits, UINT64_MAX >> shift, &parsed) || parsed == 0)
		return false;
	*value = parsed << shift;
	return true;
}

static bool parse_uid(const char *text, uid_t *uid)
{
	uint64_t number;
	/* The highest uid is (uid_t)-1, which means "none". */
	if (parse_number(text, UINT32_MAX - 1, &number)) {
		*uid = (uid_t)number;
		return true;
	}
	const struct passwd *user = getpwnam(text);
	if (user != NULL)
		*uid = user->pw_uid;
	return user != NULL;
}

static bool parse_gid(const char *text, gid_t *gid)
{
	uint64_t number;
	if (parse_number(text, UINT32_MAX - 1, &number)) {
		*gid = (gid_t)number;
		return true;
	}
	const struct group *group = getgrnam(text);
	if (group != NULL)
		*gid = group->gr_gid;
	return group != NULL;
}

static const char *parse_principal(const char *word, struct principals *who)
{
	if (strcmp(word, "all") == 0) {
		who->all = true;
		return NULL;
	}
	if (who->uid_count == CONFIG_MAX_PRINCIPALS || who->gid_count == CONFIG_MAX_PRINCIPALS)
		return "has too many entries";
	if (word[0] == '@')
		return parse_gid(word + 1, &who->gids[who->gid_count++]) ? NULL : "names a group that does not exist";
	return parse_uid(word, &who->uids[who->uid_count++]) ? NULL : "names a user that does not exist";
}

/* Users, @groups and "all", separated by blanks or commas. */
static const char *parse_principals(const char *value, struct principals *who)
{
	char copy[4096], *state;
	if ((size_t)snprintf(copy, sizeof(copy), "%s", value) >= sizeof(copy))
		return "is too long";
	for (char *word = strtok_r(copy, " ,\t", &state); word != NULL; word = strtok_r(NULL, " ,\t", &state)) {
		const char *problem = parse_principal(word, who);
		if (problem != NULL)
			return problem;
	}
	return NULL;
}

static const char *read_broker(struct config *config, const char *name, const char *value)
{
	if (strcmp(name, "dir") == 0) {
		if (value[0] != '/' || strlen(value) >= sizeof(config->dir))
			return "must be an absolute path";
		strcpy(config->dir, value);
		return NULL;
	}
	if (strcmp(name, "open") != 0)
		return "is not known";
	if (strcmp(value, "owner") == 0)
		config->open = OPEN_OWNER;
	else if (strcmp(value, "all") == 0)
		config->open = OPEN_ALL;
	else if (value[0] == '@' && parse_gid(value + 1, &config->open_gid))
		config->open = OPEN_GROUP;
	else
		return "must be owner, all, or @ and the name of a group";
	return NULL;
}

static const char *read_access(struct config *config, const char *name, const char *value)
{
	if (strcmp(name, "attach") == 0)
		return parse_principals(value, &config->attach);
	if (strcmp(name, "attach_gpu") == 0)
		return parse_principals(value, &config->attach_gpu);
	if (strcmp(name, "publish") == 0)
		return parse_principals(value, &config->publish);
	if (strcmp(name, "evict") == 0)
		return parse_principals(value, &config->evict);
	if (strcmp(name, "trusted") != 0)
		return "is not known";
	const char *problem = parse_principals(value, &config->trusted);
	if (problem == NULL && (config->trusted.all || config->trusted.gid_count > 0))
		return "must list users one by one: whoever is trusted can give others wrong weights";
	return problem;
}

static const char *read_limit(struct limits *limits, const char *name, const char *value)
{
	uint64_t number = 0;
	uint64_t *bytes = strcmp(name, "bytes") == 0		? &limits->bytes
			  : strcmp(name, "manifest_bytes") == 0 ? &limits->manifest_bytes
								: NULL;
	if (bytes != NULL)
		return parse_bytes(value, bytes) ? NULL : "must be a number with K, M, G or T, or unlimited";
	uint32_t *place = strcmp(name, "connections") == 0 ? &limits->connections
			  : strcmp(name, "models") == 0	   ? &limits->models
			  : strcmp(name, "segments") == 0  ? &limits->segments
							   : NULL;
	if (place == NULL)
		return "is not known";
	if (!parse_number(value, 1000000, &number))
		return "must be a number up to 1000000";
	*place = (uint32_t)number;
	return NULL;
}

/* "[limits alice]": starts from the general limits as read so far. */
static const char *read_user_limit(struct config *config, const char *user, const char *name, const char *value)
{
	uid_t uid;
	if (!parse_uid(user, &uid))
		return "stands under a user that does not exist";
	struct user_limits *entry = NULL;
	for (uint32_t i = 0; i < config->user_limit_count && entry == NULL; i++)
		if (config->user_limits[i].uid == uid)
			entry = &config->user_limits[i];
	if (entry == NULL) {
		if (config->user_limit_count == CONFIG_MAX_USER_LIMITS)
			return "stands under one user too many";
		entry = &config->user_limits[config->user_limit_count++];
		*entry = (struct user_limits){.uid = uid, .limits = config->limits};
	}
	return read_limit(&entry->limits, name, value);
}

static const char *read_timeout(struct config *config, const char *name, const char *value)
{
	uint32_t *place = strcmp(name, "hello_ms") == 0	  ? &config->hello_ms
			  : strcmp(name, "idle_ms") == 0  ? &config->idle_ms
			  : strcmp(name, "write_ms") == 0 ? &config->write_ms
							  : NULL;
	uint64_t number;
	if (place == NULL)
		return "is not known";
	if (!parse_number(value, 86400000, &number) || number < 10)
		return "must be 10 to 86400000 milliseconds";
	*place = (uint32_t)number;
	return NULL;
}

struct reading {
	struct config *config;
	struct ipcc_error *err;
	int rc;
	unsigned entries;
	char seen[MAX_ENTRIES][128]; /* "section/name", to find duplicates */
};

static const char *read_known(struct config *config, const char *section, const char *name, const char *value)
{
	if (strcmp(section, "broker") == 0)
		return read_broker(config, name, value);
	if (strcmp(section, "access") == 0)
		return read_access(config, name, value);
	if (strcmp(section, "limits") == 0)
		return read_limit(&config->limits, name, value);
	if (strncmp(section, "limits ", 7) == 0)
		return read_user_limit(config, section + 7, name, value);
	if (strcmp(section, "timeouts") == 0)
		return read_timeout(config, name, value);
	return "stands in a section that is not known";
}

/* inih cuts lines at 200 bytes, so lists of users may be continued, or given in parts. */
static bool is_list(const char *section)
{
	return strcmp(section, "access") == 0;
}

static const char *note_entry(struct reading *r, const char *section, const char *name)
{
	if (is_list(section))
		return NULL;
	if (r->entries == MAX_ENTRIES)
		return "is one entry too many";
	char *entry = r->seen[r->entries++];
	if ((size_t)snprintf(entry, sizeof(r->seen[0]), "%s/%s", section, name) >= sizeof(r->seen[0]))
		return "is too long";
	for (unsigned i = 0; i + 1 < r->entries; i++)
		if (strcmp(r->seen[i], entry) == 0)
			return "is given twice";
	return NULL;
}

/* inih's callback: 0 stops it with this line's number. */
static int read_entry(void *context, const char *section, const char *name, const char *value)
{
	struct reading *r = context;
	const char *problem = note_entry(r, section, name);
	if (problem == NULL)
		problem = read_known(r->config, section, name, value);
	if (problem != NULL && r->rc == IPCC_OK)
		r->rc = fail(r->err, IPCC_INVALID, "[%s] %s = %s %s", section, name, value, problem);
	return problem == NULL;
}

int config_read(struct config *config, const char *path, struct ipcc_error *err)
{
	struct reading *r = calloc(1, sizeof(*r));
	struct config read;
	if (r == NULL)
		return fail_errno(err, ENOMEM, "cannot read %s", path);
	config_defaults(&read);
	r->config = &read;
	r->err = err;
	int line = ini_parse(path, read_entry, r);
	int rc = r->rc;
	free(r);
	if (line == -1)
		return fail_errno(err, errno, "cannot read the configuration %s", path);
	if (rc != IPCC_OK)
		return fail_within(err, "%s:%d", path, line);
	if (line != 0)
		return fail(err, IPCC_INVALID, "%s:%d: neither a [section] nor a name = value", path, line);
	*config = read;
	return IPCC_OK;
}
