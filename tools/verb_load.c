/* ipc-cache load: makes a safetensors file or model folder resident, or finds that it is already. */
#include "loader/device/device.h"
#include "manifest/fail.h"
#include "manifest/format.h"
#include "manifest/key.h"
#include "manifest/utf8.h"
#include "tools/clock.h"
#include "tools/interrupt.h"
#include "tools/load_options.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/publish.h"
#include "tools/show_load.h"
#include "tools/verb.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* The key is resident: is it what the files hold? Stat tells at once, and where it cannot, reading the files costs no
 * more than the load that was asked for. */
static int compare_resident(struct ipcc_client *client, const struct load_options *o, const struct checkpoint *cp,
			    struct load_outcome *outcome, struct ipcc_model **model, struct ipcc_error *err)
{
	struct ipcc_attach_options attach = {.fields = o->publish.fields,
					     .field_count = o->publish.field_count,
					     .exact = true,
					     .sources = cp->root,
					     .verify = IPCC_VERIFY_HASH};
	int rc = ipcc_attach(client, &attach, model, err);
	if (rc != IPCC_OK)
		return rc;
	struct ipcc_model_facts facts;
	ipcc_model_facts(*model, &facts);
	const struct manifest_header *header = facts.manifest;
	if (o->named && strcmp(o->publish.name, facts.name) != 0)
		return fail_mismatch(
			err, "name", o->publish.name, facts.name,
			"the model is resident under the name %s; use that, or load it again with --replace",
			facts.name);
	if (o->shown && (le32_get(header->visibility) != o->publish.visibility ||
			 le32_get(header->visible_gid) != o->publish.visible_gid))
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

static int load(const struct load_options *o, const struct checkpoint *cp, const struct plan *plan, uint64_t start_ns,
		struct ipcc_error *err)
{
	struct key key;
	int rc = key_init(&key, o->publish.fields, o->publish.field_count, err);
	if (rc != IPCC_OK)
		return rc;
	char key_id[HASH_TEXT_BYTES];
	hash_text(&key.id, key_id);
	key_fini(&key);

	struct ipcc_client *client = NULL;
	struct ipcc_model *model = NULL;
	struct load_outcome outcome = {.name = o->publish.name,
				       .key_id = key_id,
				       .tensors = plan->tensor_count,
				       .segments = plan->segment_count,
				       .bytes = plan->tensor_bytes};
	rc = common_connect(o->common, &client, err);
	if (rc != IPCC_OK)
		return rc;
	struct progress progress;
	progress_init(&progress);
	struct fill_options fill = {.threads = o->threads,
				    .io = o->io,
				    .shared = o->selection.ranks > 1,
				    .progress = progress_show,
				    .context = &progress,
				    .cancel = interrupt_watch(client)};
	rc = publish_checkpoint(client, cp, plan, &o->selection, &o->publish, &fill, &outcome.report, err);
	outcome.generation = outcome.report.generation;
	progress_fini(&progress);
	if (rc == IPCC_EXISTS)
		rc = compare_resident(client, o, cp, &outcome, &model, err);
	if (rc == IPCC_OK) {
		outcome.duration_ns = (outcome.resident ? clock_ns() : outcome.report.ready_ns) - start_ns;
		show_outcome(&outcome, o->common->json);
	}
	if (rc == IPCC_OK && outcome.report.kept != NULL)
		rc = keep(o->common, outcome.report.kept, err);
	interrupt_watch(NULL);
	ipcc_publish_free(outcome.report.kept);
	ipcc_model_free(model);
	ipcc_close(client);
	return rc;
}

/* The device's name, and sizes of segments that suit it. */
static int suit_device(struct load_options *o, struct plan *plan, char device[IPCC_DEVICE_CHARS],
		       struct ipcc_error *err)
{
	uint64_t granularity = 1;
	int rc = ipcc_device(o->publish.device, device, err);
	const struct device *entry = rc != IPCC_OK     ? NULL
				     : o->publish.keep ? device_find_kept(device, err)
						       : device_find(device, err);
	if (entry == NULL)
		return rc != IPCC_OK ? rc : err->code;
	o->publish.device = device;
	rc = entry->granularity(device, &granularity, err);
	return rc != IPCC_OK ? rc : plan_round(plan, granularity, err);
}

/* Everything behind the plan. */
static int load_planned(struct load_options *o, const struct checkpoint *cp, const struct plan *plan, uint64_t start_ns,
			struct ipcc_error *err)
{
	struct ipcc_field fields[PUBLISH_MAX_FIELDS];
	char *selection = selection_is_all(&o->selection) ? NULL : checked(selection_text(&o->selection));
	o->publish.field_count = publish_key(cp, o->publish.device, selection, fields);
	o->publish.fields = fields;
	char *name = default_name(cp, &o->selection, o->path);
	if (o->publish.name == NULL)
		o->publish.name = name;
	int rc = load(o, cp, plan, start_ns, err);
	free(name);
	free(selection);
	return rc;
}

int verb_load(struct common *common, int argc, char **argv)
{
	struct load_options o;
	load_options_parse(&o, common, argc, argv);
	uint64_t start_ns = clock_ns();
	struct checkpoint cp = {0};
	struct plan plan = {0};
	char device[IPCC_DEVICE_CHARS];
	struct ipcc_error err;
	int rc = o.plan ? checkpoint_open(&cp, o.path, &err) : open_settled(&cp, o.path, &err);
	if (rc == IPCC_OK)
		rc = plan_init_checkpoint(&plan, &cp, &o.selection, 0, &err);
	if (rc == IPCC_OK)
		rc = suit_device(&o, &plan, device, &err);
	if (rc == IPCC_OK && o.plan)
		show_plan(&cp, &plan, &o.selection, common->json);
	else if (rc == IPCC_OK)
		rc = load_planned(&o, &cp, &plan, start_ns, &err);
	plan_fini(&plan);
	checkpoint_fini(&cp);
	return rc == IPCC_OK ? IPCC_OK : report(common, &err);
}
