/* See show_load.h. */
#include "tools/show_load.h"

#include "tools/describe.h"
#include "tools/table.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t wanted_bytes(const struct plan_read *read)
{
	return read->rows * read->bytes;
}

static void print_reads(const struct checkpoint *cp, const struct plan *plan)
{
	struct table table;
	table_init(&table, "lrrrrr");
	table_row(&table, (const char *const[]){"FILE", "AT", "BYTES", "ROWS", "SEGMENT", "OFFSET"});
	for (uint32_t i = 0; i < plan->read_count; i++) {
		const struct plan_read *read = &plan->reads[i];
		table_cell(&table, "%s", cp->files[read->file].name);
		table_cell(&table, "%llu", (unsigned long long)read->file_offset);
		table_cell(&table, "%llu", (unsigned long long)read->bytes);
		if (read->rows > 1)
			table_cell(&table, "%llu every %llu", (unsigned long long)read->rows,
				   (unsigned long long)read->stride);
		else
			table_cell(&table, "1");
		table_cell(&table, "%u", read->segment);
		table_cell(&table, "%llu", (unsigned long long)read->offset);
	}
	table_print(&table);
}

static json_t *reads_json(const struct checkpoint *cp, const struct plan *plan)
{
	json_t *array = checked(json_array());
	for (uint32_t i = 0; i < plan->read_count; i++) {
		const struct plan_read *read = &plan->reads[i];
		json_array_append_new(
			array,
			checked(json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "file",
					  json_text(cp->files[read->file].name), "file_offset",
					  json_number(read->file_offset), "bytes", json_number(read->bytes), "rows",
					  json_number(read->rows), "stride", json_number(read->stride), "segment",
					  json_number(read->segment), "offset", json_number(read->offset))));
	}
	return array;
}

static json_t *tensors_json(const struct checkpoint *cp, const struct plan *plan, const struct selection *selection)
{
	json_t *array = checked(json_array());
	for (uint32_t i = 0; i < plan->tensor_count; i++) {
		const struct plan_place *place = &plan->places[i];
		const struct safetensors_tensor *t = checkpoint_tensor(cp, place->tensor);
		uint64_t shape[MANIFEST_MAX_RANK];
		selection_shape(selection, t, shape);
		json_array_append_new(
			array, checked(json_pack("{s:o, s:s, s:o, s:o, s:o, s:o}", "name", json_text(t->name), "dtype",
						 describe_dtype(t->dtype), "shape", describe_numbers(shape, t->rank),
						 "segment", json_number(place->segment), "offset",
						 json_number(place->offset), "bytes", json_number(place->bytes))));
	}
	return array;
}

void show_plan(const struct checkpoint *cp, const struct plan *plan, const struct selection *selection, bool json)
{
	uint64_t reads = 0;
	for (uint32_t i = 0; i < plan->read_count; i++)
		reads += wanted_bytes(&plan->reads[i]);
	if (json) {
		print_json(json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "path", json_text(cp->root), "file_bytes",
				     json_number(cp->file_bytes), "tensor_bytes", json_number(plan->tensor_bytes),
				     "read_bytes", json_number(reads), "segment_bytes",
				     describe_numbers(plan->segment_bytes, plan->segment_count), "reads",
				     reads_json(cp, plan), "tensors", tensors_json(cp, plan, selection)));
		return;
	}
	fact("path", "%s", cp->root);
	fact("tensors", "%u of %u, %s of %s", plan->tensor_count, cp->tensor_count, text_size(plan->tensor_bytes).text,
	     text_size(cp->tensor_bytes).text);
	for (uint32_t i = 0; i < plan->segment_count; i++)
		fact(i == 0 ? "segments" : "", "%u: %s", i, text_bytes(plan->segment_bytes[i]).text);
	fact("reads", "%u", plan->read_count);
	print_reads(cp, plan);
}

static const char *const path_names[PATH_COUNT] = {"direct", "buffered", "mapped"};

static const char *reader_name(const struct fill_report *fill)
{
	if (!fill->readers)
		return NULL;
	return !fill->ring ? "threads" : fill->registered ? "io_uring, registered buffers" : "io_uring";
}

static uint64_t peak_bytes(void)
{
	/* Not ru_maxrss, which begins with that of the process that started us. */
	char line[128];
	unsigned long long kib = 0;
	FILE *status = fopen("/proc/self/status", "re");
	while (status != NULL && fgets(line, sizeof(line), status) != NULL && sscanf(line, "VmHWM: %llu", &kib) != 1)
		;
	if (status != NULL)
		fclose(status);
	return kib * 1024;
}

/* How the bytes came, in facts; and the same as an object. */
static void show_report(const struct publish_report *report)
{
	const struct fill_report *fill = &report->fill;
	const char *label = "read";
	if (fill->path_bytes[PATH_MAPPED] > 0) {
		fact(label, "%s from the page cache", text_size(fill->path_bytes[PATH_MAPPED]).text);
		label = "";
	}
	if (fill->path_bytes[PATH_BUFFERED] > 0) {
		fact(label, "%s through the page cache%s", text_size(fill->path_bytes[PATH_BUFFERED]).text,
		     fill->refused_bytes > 0 ? " (the file system gives nothing past it)" : "");
		label = "";
	}
	if (fill->path_bytes[PATH_DIRECT] > 0)
		fact(label, "%s past the page cache, by %s", text_size(fill->path_bytes[PATH_DIRECT]).text,
		     reader_name(fill));
	if (fill->ring_error != 0 && fill->readers)
		fact("", "io_uring cannot be used here: %s", strerror(fill->ring_error));
	for (unsigned i = 0; i < fill->device_count; i++) {
		const struct choice_device *d = &fill->devices[i];
		if (d->decided && d->rates[WAY_BUFFERED] == 0)
			fact("", "past the page cache %s, and hardly waited for the disk",
			     text_rate(d->rates[WAY_DIRECT], 1000000000).text);
		else if (d->decided)
			fact("", "past the page cache %s, through it %s",
			     text_rate(d->rates[WAY_DIRECT], 1000000000).text,
			     text_rate(d->rates[WAY_BUFFERED], 1000000000).text);
	}
	if (fill->unpinned[0] != '\0')
		fact("", "copied once more on the way, since %s", fill->unpinned);
	if (report->huge_bytes > 0)
		fact("huge pages", "%s of the segments", text_size(report->huge_bytes).text);
	fact("memory", "%s of buffers, at most %s resident in this command", text_size(fill->pool_bytes).text,
	     text_size(peak_bytes()).text);
}

static json_t *report_json(const struct publish_report *report)
{
	const struct fill_report *fill = &report->fill;
	json_t *paths = checked(json_object());
	json_t *devices = checked(json_array());
	for (unsigned i = 0; i < PATH_COUNT; i++)
		json_object_set_new(paths, path_names[i], json_number(fill->path_bytes[i]));
	for (unsigned i = 0; i < fill->device_count; i++) {
		const struct choice_device *d = &fill->devices[i];
		json_array_append_new(
			devices, checked(json_pack("{s:o, s:b, s:s, s:o, s:o}", "device", json_number(d->device),
						   "decided", d->decided, "way",
						   path_names[d->way == WAY_DIRECT ? PATH_DIRECT : PATH_BUFFERED],
						   "direct_bytes_per_second", json_number(d->rates[WAY_DIRECT]),
						   "buffered_bytes_per_second", json_number(d->rates[WAY_BUFFERED]))));
	}
	const char *reader = reader_name(fill);
	return checked(json_pack(
		"{s:o, s:o, s:o, s:s?, s:s?, s:o, s:o, s:o, s:o, s:s?, s:f}", "bytes_read",
		json_number(report->bytes_read), "paths", paths, "devices", devices, "reader", reader, "io_uring_error",
		fill->ring_error != 0 ? strerror(fill->ring_error) : NULL, "refused_bytes",
		json_number(fill->refused_bytes), "buffer_bytes", json_number(fill->pool_bytes), "peak_rss_bytes",
		json_number(peak_bytes()), "huge_page_bytes", json_number(report->huge_bytes), "unpinned",
		fill->unpinned[0] != '\0' ? fill->unpinned : NULL, "fill_seconds", (double)fill->duration_ns / 1e9));
}

void show_outcome(const struct load_outcome *o, bool json)
{
	double seconds = (double)o->duration_ns / 1e9;
	if (json) {
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
