/* ipc-cache dump: the manifest of a resident model, or of a file that `dump --raw` wrote, for people, as JSON, or raw. */
#include "broker/client/ipc_cache.h"
#include "manifest/fail.h"
#include "manifest/fd.h"
#include "manifest/validate.h"
#include "tools/describe.h"
#include "tools/output.h"
#include "tools/verb.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { OPTION_FILE = 1, OPTION_RAW, OPTION_TENSORS };

static const struct argp_option options[] = {
	{"file", OPTION_FILE, "PATH", 0, "Read the manifest from this file, and check every byte of it first", 0},
	{"raw", OPTION_RAW, NULL, 0, "Write the manifest's bytes, as ipc-cache-manifest(5) describes them", 0},
	{"tensors", OPTION_TENSORS, NULL, 0, "List the tensors too", 0},
	{0},
};

struct arguments {
	struct common *common;
	const char *model;
	const char *file;
	bool raw;
	bool tensors;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;
	switch (key) {
	case OPTION_FILE:
		a->file = arg;
		return 0;
	case OPTION_RAW:
		a->raw = true;
		return 0;
	case OPTION_TENSORS:
		a->tensors = true;
		return 0;
	case ARGP_KEY_ARG:
		option_argument(state, &a->model, arg);
		return 0;
	case ARGP_KEY_END:
		if ((a->model == NULL) == (a->file == NULL))
			argp_error(state, "give either a MODEL or --file PATH");
		if (a->raw && a->common->json)
			argp_error(state, "--raw and --json exclude each other");
		if (a->raw && isatty(STDOUT_FILENO))
			argp_error(state, "--raw is for a file or a pipe, not for a terminal");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp argp = {
	.options = options,
	.parser = parse,
	.args_doc = "MODEL\n--file PATH",
	.doc = "Shows the manifest of a resident model, or of a file that --raw wrote. Of a file, the exit status is "
	       "the "
	       "verdict: 5 if it is damaged. " MODEL_DOC,
};

/* Prints a manifest in the form that was asked for. */
static int print_manifest(const struct arguments *a, const void *bytes, uint64_t length, struct ipcc_error *err)
{
	if (a->raw) {
		fwrite(bytes, 1, length, stdout); /* an error shows at the end, see output.c */
		return IPCC_OK;
	}
	struct manifest m;
	json_t *document;
	int rc = manifest_init(&m, bytes, length, false, err);
	if (rc != IPCC_OK)
		return rc;
	if (!a->common->json)
		return describe_manifest(&m, a->tensors, err);
	rc = describe_manifest_json(&m, a->tensors, &document, err);
	if (rc == IPCC_OK)
		print_json(document);
	return rc;
}

/* Reads the whole file, whatever kind it is; a file longer than any manifest is cut one byte behind that. */
static int read_file(const char *path, void **bytes, size_t *length, struct ipcc_error *err)
{
	cleanup_fd int fd = strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? fail(err, IPCC_NOT_FOUND, "%s: there is no such file", path)
				       : fail_errno(err, errno, "%s", path);
	/* A manifest is read in place and wants its alignment; untouched pages cost nothing. */
	size_t capacity = MANIFEST_MAX_BYTES + MANIFEST_ALIGNMENT, filled = 0;
	char *buffer = checked(aligned_alloc(MANIFEST_ALIGNMENT, capacity));
	while (filled < capacity) {
		ssize_t got = read(fd, buffer + filled, capacity - filled);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0) {
			free(buffer);
			return fail_errno(err, errno, "%s", path);
		}
		if (got == 0)
			break;
		filled += (size_t)got;
	}
	*bytes = buffer;
	*length = filled;
	return IPCC_OK;
}

static int dump_file(const struct arguments *a, struct ipcc_error *err)
{
	void *bytes = NULL;
	size_t length = 0;
	int rc = read_file(a->file, &bytes, &length, err);
	if (rc != IPCC_OK)
		return rc;
	rc = manifest_validate(bytes, length, err);
	if (rc == IPCC_OK)
		rc = print_manifest(a, bytes, length, err);
	else
		fail_within(err, "%s", a->file);
	free(bytes);
	return rc;
}

static int dump_model(const struct arguments *a, struct ipcc_error *err)
{
	struct ipcc_client *client = NULL;
	struct ipcc_model *model = NULL;
	struct ipcc_attach_options attach = {.model = a->model, .verify = IPCC_VERIFY_NONE};
	struct ipcc_model_facts facts;
	int rc = common_connect(a->common, &client, err);
	if (rc == IPCC_OK)
		rc = ipcc_attach(client, &attach, &model, err);
	if (rc == IPCC_OK) {
		ipcc_model_facts(model, &facts);
		rc = print_manifest(a, facts.manifest, facts.manifest_bytes, err);
	}
	ipcc_model_free(model);
	ipcc_close(client);
	return rc;
}

int verb_dump(struct common *common, int argc, char **argv)
{
	struct arguments a = {.common = common};
	parse_arguments(&argp, &a, NULL, common, 0, argc, argv);
	struct ipcc_error err;
	int rc = a.file != NULL ? dump_file(&a, &err) : dump_model(&a, &err);
	return rc == IPCC_OK ? IPCC_OK : report(common, &err);
}
