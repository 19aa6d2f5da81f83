/* ipc-cache load: makes a safetensors file or model folder resident, or finds that it is already. */
#include "loader/device/device.h"
#include "manifest/fail.h"
#include "manifest/format.h"
#include "manifest/key.h"
#include "manifest/utf8.h"
#include "tools/clock.h"
#include "tools/interrupt.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/publish.h"
#include "tools/select.h"
#include "tools/show_load.h"
#include "tools/verb.h"

#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	OPTION_NAME = 1,
	OPTION_DEVICE,
	OPTION_REPLACE,
	OPTION_WAIT,
	OPTION_VISIBLE,
	OPTION_THREADS,
	OPTION_IO,
	OPTION_PLAN,
	OPTION_KEEPER
};

static const struct argp_option options[] = {
	{"name", OPTION_NAME, "NAME", 0,
	 "What to call it (default: the name of the folder, or of the file without its "
	 "suffix)",
	 0},
	{"device", OPTION_DEVICE, "DEVICE", 0,
	 "Where it shall live: host (default), cuda:0, a GPU's UUID, or auto (the GPU with the most free memory, host "
	 "if there "
	 "is none)",
	 0},
	{"replace", OPTION_REPLACE, NULL, 0, "Load it even if it is resident; the old one goes with its last lease", 0},
	{"wait", OPTION_WAIT, "MS", 0, "While somebody else loads the same model: wait so long (or 'forever') for it",
	 0},
	{"visible", OPTION_VISIBLE, "WHOM", 0, "Who may attach: owner (default), group:NAME, all", 0},
	{"threads", OPTION_THREADS, "N", 0, "How many threads read (default: one per processor, at most 8)", 0},
	{"io", OPTION_IO, "HOW", 0,
	 "How files are read: direct (past the page cache), buffered, mmap, or auto (default: from the page cache what "
	 "is "
	 "there; the rest as is faster, by measurement)",
	 0},
	{"keeper", OPTION_KEEPER, NULL, 0,
	 "Hold the memory in this process, and stay until the model is evicted: for a GPU whose memory cannot be "
	 "shared as "
	 "file descriptors. The model ends with this process",
	 0},
	{"plan", OPTION_PLAN, NULL, 0, "Load nothing; show what would be read, and where it would go", 0},
	{0},
};

struct arguments {
	struct common *common;
	struct argument argument;
	const char *path;
	unsigned threads;
	enum fill_io io;
	bool plan;
	bool named, shown; /* --name and --visible were given */
	struct selection selection;
	struct ipcc_publish_options publish;
};

static void parse_visible(struct argp_state *state, const char *text, struct ipcc_publish_options *publish)
{
	if (strcmp(text, "owner") == 0) {
		publish->visibility = IPCC_VISIBLE_OWNER;
	} else if (strcmp(text, "all") == 0) {
		publish->visibility = IPCC_VISIBLE_ALL;
	} else if (strncmp(text, "group:", 6) == 0) {
		const struct group *group = getgrnam(text + 6);
		publish->visibility = IPCC_VISIBLE_GROUP;
		publish->visible_gid = group != NULL ? group->gr_gid
						     : (gid_t)option_number(state, "--visible: no such group", text + 6,
									    0, UINT32_MAX - 1);
	} else {
		argp_error(state, "--visible: '%s' is none of owner, group:NAME, all", text);
	}
}

static enum fill_io parse_io(struct argp_state *state, const char *text)
{
	static const char *const names[] = {
		[FILL_AUTO] = "auto", [FILL_DIRECT] = "direct", [FILL_BUFFERED] = "buffered", [FILL_MMAP] = "mmap"};
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(text, names[i]) == 0)
			return i;
	argp_error(state, "--io: '%s' is none of direct, buffered, mmap, auto", text);
	return FILL_AUTO;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;
	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &a->selection;
		state->child_inputs[1] = a->common;
		a->argument = (struct argument){&a->path, "which file or folder?"};
		state->child_inputs[2] = &a->argument;
		return 0;
	case OPTION_IO:
		a->io = parse_io(state, arg);
		return 0;
	case OPTION_KEEPER:
		a->publish.keep = true;
		return 0;
	case OPTION_PLAN:
		a->plan = true;
		return 0;
	case OPTION_NAME:
		a->publish.name = arg;
		a->named = true;
		return 0;
	case OPTION_DEVICE:
		a->publish.device = arg;
		return 0;
	case OPTION_REPLACE:
		a->publish.replace = true;
		return 0;
	case OPTION_WAIT:
		a->publish.wait_ms = option_wait(state, arg);
		return 0;
	case OPTION_VISIBLE:
		parse_visible(state, arg, &a->publish);
		a->shown = true;
		return 0;
	case OPTION_THREADS:
		a->threads = (unsigned)option_number(state, "--threads", arg, 1, FILL_MAX_THREADS);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_child children[] = {{&select_argp, 0, "A part of the model:", 5},
					     {&common_argp, 0, "Every verb has:", 10},
					     {&argument_argp, 0, NULL, 0},
					     {0}};

static const struct argp argp = {
	.options = options,
	.parser = parse,
	.args_doc = "PATH",
	.doc = "Loads a safetensors file, or a model folder with one or with model.safetensors.index.json, and makes "
	       "it "
	       "resident: it stays when this command ends (unless --keeper is given). A model that is resident already "
	       "is compared with the files "
	       "and left as it is.",
	.children = children,
};

/* How long until the times of all files can prove that they were not written again; 0 when they can, or when they lie in
 * the future and never will. */
static uint64_t unsettled_ns(const struct checkpoint *cp)
{
	const struct source *index = &cp->index;
	uint64_t longest = cp->indexed ? manifest_unsettled_ns(index->mtime_ns, index->ctime_ns, index->stat_ns) : 0;
	for (uint32_t i = 0; i < cp->file_count; i++) {
		const struct source *source = &cp->files[i].header.source;
		uint64_t wait_ns = manifest_unsettled_ns(source->mtime_ns, source->ctime_ns, source->stat_ns);
		longest = wait_ns > longest ? wait_ns : longest;
	}
	return longest;
}

/* Files that were written a moment ago are waited for, two seconds at most: otherwise every later attach that compares
 * them would have to read them. */
static int open_settled(struct checkpoint *cp, const char *path, struct ipcc_error *err)
{
	int rc = checkpoint_open(cp, path, err);
	uint64_t wait_ns = rc == IPCC_OK ? unsettled_ns(cp) : 0;
	if (wait_ns == 0)
		return rc;
	checkpoint_fini(cp);
	clock_sleep_ns(wait_ns);
	return checkpoint_open(cp, path, err);
}

/* The last part of the path, without .safetensors, and the rank, if there are several; the caller frees it. */
static char *default_name(const struct checkpoint *cp, const struct selection *selection, const char *given)
{
	/* A file is called as it was given: behind a link it may have a hash for a name. */
	char *end = strrchr(cp->folder ? cp->root : given, '/');
	char *name = format_text("%s", end == NULL ? given : end + 1);
	char *suffix = strstr(name, ".safetensors");
	if (!cp->folder && suffix != NULL && suffix != name && suffix[strlen(".safetensors")] == '\0')
		*suffix = '\0';
	utf8_clean(name);
	if (selection->ranks <= 1)
		return name;
	char *ranked = format_text("%s-rank-%u-of-%u", name, selection->rank, selection->ranks);
	free(name);
	return ranked;
}

/* What is printed at the end. */
struct outcome {
	const char *name;
	const char *key_id;
	bool resident; /* it was there before */
	struct publish_report report;
	uint64_t generation;
	uint32_t tensors;
	uint32_t segments;
	uint64_t bytes;
	uint64_t duration_ns;
};

static void print_outcome(const struct common *common, const struct outcome *o)
{
	double seconds = (double)o->duration_ns / 1e9;
	if (common->json) {
		print_json(json_pack(
			"{s:o, s:o, s:b, s:o, s:o, s:o, s:o, s:f, s:f, s:o, s:o}", "name", json_text(o->name), "key_id",
			json_text(o->key_id), "already_resident", o->resident, "generation", json_number(o->generation),
			"tensors", json_number(o->tensors), "segments", json_number(o->segments), "bytes",
			json_number(o->bytes), "seconds", seconds, "bytes_per_second", (double)o->bytes / seconds, "io",
			o->resident ? json_null() : report_json(&o->report), "keeper_pid",
			o->report.kept == NULL ? json_null() : json_number((uint64_t)getpid())));
		return;
	}
	fact("model", "%s%s", o->name, o->resident ? ", already resident and the same as the files" : "");
	fact("key id", "%s", o->key_id);
	fact("generation", "%llu", (unsigned long long)o->generation);
	fact("tensors", "%u in %u segment%s, %s", o->tensors, o->segments, o->segments == 1 ? "" : "s",
	     text_bytes(o->bytes).text);
	if (o->resident) {
		fact("checked in", "%.3f s", seconds);
		return;
	}
	show_report(&o->report);
	fact("loaded in", "%.3f s, %s", seconds, text_rate(o->bytes, o->duration_ns).text);
	if (o->report.kept != NULL)
		fact("keeper", "this process, %d: the model ends with it; ipc-cache evict ends both", getpid());
}

/* The key is resident: is it what the files hold? Stat tells at once, and where it cannot, reading the files costs no
 * more than the load that was asked for. */
static int compare_resident(struct ipcc_client *client, const struct arguments *a, const struct checkpoint *cp,
			    struct outcome *outcome, struct ipcc_model **model, struct ipcc_error *err)
{
	struct ipcc_attach_options attach = {.fields = a->publish.fields,
					     .field_count = a->publish.field_count,
					     .exact = true,
					     .sources = cp->root,
					     .verify = IPCC_VERIFY_HASH};
	int rc = ipcc_attach(client, &attach, model, err);
	if (rc != IPCC_OK)
		return rc;
	struct ipcc_model_facts facts;
	ipcc_model_facts(*model, &facts);
	const struct manifest_header *header = facts.manifest;
	if (a->named && strcmp(a->publish.name, facts.name) != 0)
		return fail_mismatch(
			err, "name", a->publish.name, facts.name,
			"the model is resident under the name %s; use that, or load it again with --replace",
			facts.name);
	if (a->shown && (le32_get(header->visibility) != a->publish.visibility ||
			 le32_get(header->visible_gid) != a->publish.visible_gid))
		return fail(err, IPCC_MISMATCH,
			    "the model is resident and visible to others than --visible says; load it again with "
			    "--replace");
	outcome->resident = true;
	outcome->name = facts.name;
	outcome->generation = facts.generation;
	return IPCC_OK;
}

/* Stays until the memory is wanted no longer; a signal ends both. */
static int keep(const struct common *common, struct ipcc_publish *kept, struct ipcc_error *err)
{
	fflush(stdout);
	int rc = ipcc_publish_keep(kept, err);
	if (rc != IPCC_OK && rc != IPCC_CANCELED)
		return rc;
	if (!common->json)
		fact("ended", "%s; the memory is freed",
		     rc == IPCC_OK ? "the model was evicted, and nobody has it any more"
				   : "by a signal, and the model with it");
	return IPCC_OK;
}

static int load(const struct arguments *a, const struct checkpoint *cp, const struct plan *plan, uint64_t start_ns,
		struct ipcc_error *err)
{
	struct key key;
	int rc = key_init(&key, a->publish.fields, a->publish.field_count, err);
	if (rc != IPCC_OK)
		return rc;
	char key_id[HASH_TEXT_BYTES];
	hash_text(&key.id, key_id);
	key_fini(&key);

	struct ipcc_client *client = NULL;
	struct ipcc_model *model = NULL;
	struct outcome outcome = {.name = a->publish.name,
				  .key_id = key_id,
				  .tensors = plan->tensor_count,
				  .segments = plan->segment_count,
				  .bytes = plan->tensor_bytes};
	rc = common_connect(a->common, &client, err);
	if (rc != IPCC_OK)
		return rc;
	struct progress progress;
	progress_init(&progress);
	struct fill_options fill = {.threads = a->threads,
				    .io = a->io,
				    .shared = a->selection.ranks > 1,
				    .progress = progress_show,
				    .context = &progress,
				    .cancel = interrupt_watch(client)};
	rc = publish_checkpoint(client, cp, plan, &a->selection, &a->publish, &fill, &outcome.report, err);
	outcome.generation = outcome.report.generation;
	progress_fini(&progress);
	if (rc == IPCC_EXISTS)
		rc = compare_resident(client, a, cp, &outcome, &model, err);
	if (rc == IPCC_OK) {
		outcome.duration_ns = (outcome.resident ? clock_ns() : outcome.report.ready_ns) - start_ns;
		print_outcome(a->common, &outcome);
	}
	if (rc == IPCC_OK && outcome.report.kept != NULL)
		rc = keep(a->common, outcome.report.kept, err);
	interrupt_watch(NULL);
	ipcc_publish_free(outcome.report.kept);
	ipcc_model_free(model);
	ipcc_close(client);
	return rc;
}

/* The device's name, and sizes of segments that suit it. */
static int suit_device(struct arguments *a, struct plan *plan, char device[IPCC_DEVICE_CHARS], struct ipcc_error *err)
{
	uint64_t granularity = 1;
	int rc = ipcc_device(a->publish.device, device, err);
	const struct device *entry = rc != IPCC_OK     ? NULL
				     : a->publish.keep ? device_find_kept(device, err)
						       : device_find(device, err);
	if (entry == NULL)
		return rc != IPCC_OK ? rc : err->code;
	a->publish.device = device;
	rc = entry->granularity(device, &granularity, err);
	return rc != IPCC_OK ? rc : plan_round(plan, granularity, err);
}

/* Everything behind the plan. */
static int load_planned(struct arguments *a, const struct checkpoint *cp, const struct plan *plan, uint64_t start_ns,
			struct ipcc_error *err)
{
	struct ipcc_field fields[PUBLISH_MAX_FIELDS];
	char *selection = selection_is_all(&a->selection) ? NULL : checked(selection_text(&a->selection));
	a->publish.field_count = publish_key(cp, a->publish.device, selection, fields);
	a->publish.fields = fields;
	char *name = default_name(cp, &a->selection, a->path);
	if (a->publish.name == NULL)
		a->publish.name = name;
	int rc = load(a, cp, plan, start_ns, err);
	free(name);
	free(selection);
	return rc;
}

int verb_load(struct common *common, int argc, char **argv)
{
	struct arguments a = {.common = common, .publish.device = "host"};
	parse_arguments(&argp, argc, argv, 0, &a);
	uint64_t start_ns = clock_ns();
	struct checkpoint cp = {0};
	struct plan plan = {0};
	char device[IPCC_DEVICE_CHARS];
	struct ipcc_error err;
	int rc = a.plan ? checkpoint_open(&cp, a.path, &err) : open_settled(&cp, a.path, &err);
	if (rc == IPCC_OK)
		rc = plan_init_checkpoint(&plan, &cp, &a.selection, 0, &err);
	if (rc == IPCC_OK)
		rc = suit_device(&a, &plan, device, &err);
	if (rc == IPCC_OK && a.plan)
		show_plan(&cp, &plan, &a.selection, common->json);
	else if (rc == IPCC_OK)
		rc = load_planned(&a, &cp, &plan, start_ns, &err);
	plan_fini(&plan);
	checkpoint_fini(&cp);
	return rc == IPCC_OK ? IPCC_OK : report(common, &err);
}
