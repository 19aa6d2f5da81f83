/* ipc-cache doctor: what is wrong with this machine or set-up, each with its remedy. */
#include "tools/findings.h"
#include "tools/output.h"
#include "tools/verb.h"

#include <stdlib.h>

static const char *const level_names[] = {"OK", "WARN", "FAIL"};

void findings_add(struct findings *f, enum finding_level level, const char *name, char *text, char *remedy)
{
	if (f->count == FINDINGS_MAX)
		abort();
	f->entries[f->count++] = (struct finding){level, name, text, remedy};
}

static void print_findings(const struct findings *f)
{
	for (size_t i = 0; i < f->count; i++) {
		const struct finding *finding = &f->entries[i];
		fact(level_names[finding->level], "%s: %s", finding->name, finding->text);
		if (finding->remedy != NULL)
			fact("", "remedy: %s", finding->remedy);
	}
}

static void print_findings_json(const struct findings *f, bool healthy)
{
	json_t *array = checked(json_array());
	for (size_t i = 0; i < f->count; i++) {
		const struct finding *finding = &f->entries[i];
		json_array_append_new(
			array, checked(json_pack("{s:s, s:s, s:o, s:o}", "level", level_names[finding->level], "name",
						 finding->name, "text", json_text(finding->text), "remedy",
						 finding->remedy == NULL ? json_null() : json_text(finding->remedy))));
	}
	print_json(json_pack("{s:b, s:o}", "healthy", healthy, "findings", array));
}

int verb_doctor(struct common *common, int argc, char **argv)
{
	common_parse(
		common,
		"Says what is wrong with this machine or set-up, each with its remedy. The exit status is 1 if a check "
		"fails; warnings cost speed or convenience only.",
		argc, argv);
	struct findings findings = {0};
	check_machine(&findings);
	check_devices(&findings);
	check_broker(&findings, common);
	bool healthy = true;
	for (size_t i = 0; i < findings.count; i++)
		healthy = healthy && findings.entries[i].level != FINDING_FAIL;
	if (common->json)
		print_findings_json(&findings, healthy);
	else
		print_findings(&findings);
	for (size_t i = 0; i < findings.count; i++) {
		free(findings.entries[i].text);
		free(findings.entries[i].remedy);
	}
	return healthy ? IPCC_OK : IPCC_FAILED;
}
