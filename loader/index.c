/*
 * See index.h. The weight map is jansson's own hash table, kept and rewritten: the values become shard numbers, and, as
 * the shards are compared, ~number for what was found. What is left over is missing. Linear in the number of tensors.
 */
#include "loader/index.h"

#include "loader/foreign.h"
#include "loader/json.h"
#include "loader/shown.h"
#include "manifest/fail.h"
#include "manifest/fd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void index_fini(struct index *index)
{
	free(index->path);
	free(index->shards);
	json_decref(index->document);
	*index = (struct index){0};
}

/* Is it a plain relative path that stays below the folder? One spelling per file: no empty or dot component. */
static bool stays_inside(const char *name)
{
	for (;;) {
		size_t length = strcspn(name, "/");
		if (length == 0 || (length == 1 && name[0] == '.') || (length == 2 && memcmp(name, "..", 2) == 0))
			return false;
		if (name[length] == '\0')
			return true;
		name += length + 1;
	}
}

static int read_document(struct index *index, int dirfd, const char *name, struct ipcc_error *err)
{
	struct source source;
	cleanup_fd int fd = -1;

	int r = source_open(dirfd, name, index->path, &fd, &source, err);
	if (r != 0)
		return r;
	if (source.bytes > CHECKPOINT_MAX_INDEX_BYTES)
		return fail(err, IPCC_REFUSED, "%s: %" PRIu64 " bytes; an index of more than %" PRIu64 " is not read",
			    shown(index->path), source.bytes, CHECKPOINT_MAX_INDEX_BYTES);
	cleanup_free char *text = malloc(source.bytes + 1);
	if (text == NULL)
		return fail(err, IPCC_NO_MEMORY, "%s: no memory for %" PRIu64 " bytes", shown(index->path),
			    source.bytes);
	r = fd_read_exact(fd, text, source.bytes, 0);
	if (r == -ENODATA)
		return fail(err, IPCC_INVALID, "%s: changed while being read: it is shorter now", shown(index->path));
	if (r < 0)
		return fail_errno(err, -r, "%s: reading %" PRIu64 " bytes at offset 0", shown(index->path),
				  source.bytes);
	return json_read(text, source.bytes, JSON_REJECT_DUPLICATES, index->path, 0, &index->document, err);
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_shard_name(const struct index *index, const char *tensor, const char *shard, struct ipcc_error *err)
{
	if (!stays_inside(shard))
		return fail(err, IPCC_INVALID,
			    "%s: tensor '%s' is in shard '%s': not a plain path inside the folder, refused",
			    shown(index->path), shown(tensor), shown(shard));
	if (foreign_by_name(shard) != NULL)
		return foreign_refuse(foreign_by_name(shard), shard, err);
	return 0;
}

/* The distinct shard names, sorted, in index->shards; in `numbers`, the number of each. */
static int collect_shards(struct index *index, json_t *numbers, struct ipcc_error *err)
{
	const char *tensor;
	json_t *value;

	json_object_foreach(index->weight_map, tensor, value)
	{
		const char *shard = json_string_value(value);
		if (shard == NULL)
			return fail(err, IPCC_INVALID, "%s: the shard of tensor '%s' is not a string",
				    shown(index->path), shown(tensor));
		if (json_object_get(numbers, shard) != NULL)
			continue;
		int r = check_shard_name(index, tensor, shard, err);
		if (r != 0)
			return r;
		if (json_object_size(numbers) == CHECKPOINT_MAX_SHARDS)
			return fail(err, IPCC_REFUSED, "%s: more than %d shards", shown(index->path),
				    CHECKPOINT_MAX_SHARDS);
		if (json_object_set_new(numbers, shard, json_integer(0)) < 0)
			return fail(err, IPCC_NO_MEMORY, "%s: no memory", shown(index->path));
	}
	index->shards = calloc(json_object_size(numbers), sizeof(*index->shards));
	if (index->shards == NULL)
		return fail(err, IPCC_NO_MEMORY, "%s: no memory", shown(index->path));
	json_object_foreach(numbers, tensor, value) index->shards[index->shard_count++] = tensor;
	qsort(index->shards, index->shard_count, sizeof(*index->shards), compare_names);
	for (uint32_t i = 0; i < index->shard_count; i++)
		json_integer_set(json_object_get(numbers, index->shards[i]), i);
	return 0;
}

/* Replaces shard names by shard numbers. */
static int number_tensors(struct index *index, const json_t *numbers, struct ipcc_error *err)
{
	for (void *at = json_object_iter(index->weight_map); at != NULL;
	     at = json_object_iter_next(index->weight_map, at)) {
		json_t *number = json_object_get(numbers, json_string_value(json_object_iter_value(at)));
		if (json_object_iter_set_new(index->weight_map, at, json_integer(json_integer_value(number))) < 0)
			return fail(err, IPCC_NO_MEMORY, "%s: no memory", shown(index->path));
	}
	return 0;
}

static int parse(struct index *index, struct ipcc_error *err)
{
	index->weight_map = json_object_get(index->document, "weight_map");
	if (!json_is_object(index->weight_map))
		return fail(err, IPCC_INVALID, "%s: no object 'weight_map' in it: not an index of safetensors shards",
			    shown(index->path));
	if (json_object_size(index->weight_map) == 0)
		return fail(err, IPCC_INVALID, "%s: its weight_map is empty", shown(index->path));
	if (json_object_size(index->weight_map) > SAFETENSORS_MAX_TENSORS)
		return fail(err, IPCC_REFUSED, "%s: more than %d tensors", shown(index->path), SAFETENSORS_MAX_TENSORS);
	json_t *numbers = json_object();
	if (numbers == NULL)
		return fail(err, IPCC_NO_MEMORY, "%s: no memory", shown(index->path));
	int r = collect_shards(index, numbers, err);
	if (r == 0)
		r = number_tensors(index, numbers, err);
	/* The shard names live in its keys. */
	if (json_object_set_new(index->document, "shards", numbers) < 0 && r == 0)
		r = fail(err, IPCC_NO_MEMORY, "%s: no memory", shown(index->path));
	return r;
}

int index_read(struct index *index, int dirfd, const char *name, const char *path, struct ipcc_error *err)
{
	struct index found = {.path = strdup(path)};

	int r = found.path != NULL ? 0 : fail(err, IPCC_NO_MEMORY, "%s: no memory", shown(path));
	if (r == 0)
		r = read_document(&found, dirfd, name, err);
	if (r == 0)
		r = parse(&found, err);
	if (r != 0) {
		index_fini(&found);
		return r;
	}
	*index = found;
	return 0;
}

const char *index_tensor_of(const struct index *index, uint32_t shard)
{
	const char *tensor;
	json_t *value;

	json_object_foreach(index->weight_map, tensor, value)
	{
		if (json_integer_value(value) == (json_int_t)shard)
			return tensor;
	}
	return "";
}

static bool file_has(const struct checkpoint_file *file, const char *tensor)
{
	for (uint32_t i = 0; i < file->header.tensor_count; i++) {
		if (strcmp(file->header.tensors[i].name, tensor) == 0)
			return true;
	}
	return false;
}

/* Shard `shard` holds `tensor`: does the index say so? */
static int check_tensor(struct index *index, const struct checkpoint_file *files, uint32_t shard, const char *tensor,
			struct ipcc_error *err)
{
	json_t *value = json_object_get(index->weight_map, tensor);
	json_int_t number = json_integer_value(value);

	if (value == NULL)
		return fail(err, IPCC_INVALID, "%s: tensor '%s' is in this shard, but not in the index",
			    shown(files[shard].header.path), shown(tensor));
	json_int_t assigned = number < 0 ? ~number : number;
	if (assigned == (json_int_t)shard) {
		json_integer_set(value, ~assigned);
		return 0;
	}
	if (file_has(&files[assigned], tensor))
		return fail(err, IPCC_INVALID, "%s: tensor '%s' is defined twice, in this shard and in %s",
			    shown(files[shard].header.path), shown(tensor), shown(files[assigned].name));
	return fail(err, IPCC_INVALID, "%s: tensor '%s' is in this shard, but the index assigns it to %s",
		    shown(files[shard].header.path), shown(tensor), shown(files[assigned].name));
}

int index_check(struct index *index, const struct checkpoint_file *files, struct ipcc_error *err)
{
	const char *tensor;
	json_t *value;

	for (uint32_t shard = 0; shard < index->shard_count; shard++) {
		const struct safetensors *header = &files[shard].header;
		for (uint32_t i = 0; i < header->tensor_count; i++) {
			int r = check_tensor(index, files, shard, header->tensors[i].name, err);
			if (r != 0)
				return r;
		}
	}
	json_object_foreach(index->weight_map, tensor, value)
	{
		if (json_integer_value(value) >= 0)
			return fail(err, IPCC_INVALID, "%s: tensor '%s' is missing: the index assigns it to this shard",
				    shown(files[json_integer_value(value)].header.path), shown(tensor));
	}
	return 0;
}
