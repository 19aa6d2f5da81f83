/* ipc-cache ls: the resident models and who holds them. */
#include "broker/client/ipc_cache.h"
#include "tools/describe.h"
#include "tools/output.h"
#include "tools/table.h"
#include "tools/verb.h"

#include <stdlib.h>
#include <string.h>

static const char *state_name(enum ipcc_model_state state)
{
	switch (state) {
	case IPCC_MODEL_LOADING:
		return "loading";
	case IPCC_MODEL_READY:
		return "ready";
	case IPCC_MODEL_DRAINING:
		return "draining";
	default:
		return "?";
	}
}

/* "1234 python3, 1240 sleep, 3 more"; the caller frees it. */
static char *holders_text(const struct ipcc_listing *model)
{
	char *text = model->kept ? format_text("kept by %d %s%s", model->publisher_pid,
					       text_command(model->publisher_pid).text, model->leases > 0 ? "; " : "")
				 : format_text("%s", "");
	for (uint32_t i = 0; i < model->holder_count; i++) {
		pid_t pid = model->holders[i].pid;
		struct short_text command = text_command(pid);
		char *longer = format_text("%s%s%d%s%s", text, i == 0 ? "" : ", ", pid,
					   command.text[0] == '\0' ? "" : " ", command.text);
		free(text);
		text = longer;
	}
	if (model->leases > model->holder_count) {
		char *longer = format_text("%s%s%u more", text, model->holder_count == 0 ? "" : ", ",
					   model->leases - model->holder_count);
		free(text);
		text = longer;
	}
	return text;
}

/* The key's device; a publisher need not have named one. */
static const char *device_of(const struct ipcc_listing *model)
{
	for (uint32_t i = 0; i < model->field_count; i++)
		if (strcmp(model->fields[i].name, "device") == 0)
			return model->fields[i].value;
	return "-";
}

static void print_table(const struct ipcc_list *list)
{
	struct table table;
	table_init(&table, "lllllrrrrl");
	table_row(&table, (const char *const[]){"NAME", "KEY", "STATE", "OWNER", "DEVICE", "SIZE", "TENSORS", "AGE",
						"LEASES", "HOLDERS"});
	for (uint32_t i = 0; i < list->count; i++) {
		const struct ipcc_listing *model = &list->models[i];
		char *holders = holders_text(model);
		table_cell(&table, "%s", model->name);
		table_cell(&table, "%.8s", model->key_id);
		table_cell(&table, "%s", state_name(model->state));
		table_cell(&table, "%s", text_user(model->owner_uid).text);
		table_cell(&table, "%.12s", device_of(model));
		table_cell(&table, "%s", text_size(model->bytes).text);
		table_cell(&table, "%u", model->tensors);
		table_cell(&table, "%s", text_age(model->created_ns).text);
		table_cell(&table, "%u", model->leases);
		table_cell(&table, "%s", holders);
		free(holders);
	}
	table_print(&table);
}

static json_t *model_json(const struct ipcc_listing *model)
{
	return json_pack("{s:o, s:o, s:s, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name",
			 json_text(model->name), "key_id", json_text(model->key_id), "state", state_name(model->state),
			 "key", describe_fields(model->fields, model->field_count), "generation",
			 json_number(model->generation), "owner_uid", json_number(model->owner_uid), "visibility",
			 describe_visibility(model->visibility), "visible_gid", json_number(model->visible_gid),
			 "publisher_pid", json_number((uint64_t)model->publisher_pid), "created_ns",
			 json_number(model->created_ns), "bytes", json_number(model->bytes), "segments",
			 json_number(model->segments), "tensors", json_number(model->tensors), "leases",
			 json_number(model->leases), "holders", describe_holders(model), "keeper_pid",
			 model->kept ? json_number((uint64_t)model->publisher_pid) : json_null());
}

static void print_list_json(const struct ipcc_list *list)
{
	json_t *models = checked(json_array());
	for (uint32_t i = 0; i < list->count; i++)
		json_array_append_new(models, checked(model_json(&list->models[i])));
	print_json(json_pack("{s:o}", "models", models));
}

int verb_ls(struct common *common, int argc, char **argv)
{
	common_parse(common, "Lists the models that you may see, and the processes that hold them.", argc, argv);
	struct ipcc_client *client = NULL;
	struct ipcc_list *list = NULL;
	struct ipcc_error err;
	int status = IPCC_OK;
	if (common_connect(common, &client, &err) || ipcc_list(client, &list, &err)) {
		status = report(common, &err);
	} else if (common->json) {
		print_list_json(list);
	} else {
		print_table(list);
	}
	ipcc_list_free(list);
	ipcc_close(client);
	return status;
}
