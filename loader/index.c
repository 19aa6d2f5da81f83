/*
 * See index.h. An index in the form that all writers give it is taken as it stands (members.h), which is five times as fast;
 * any other is parsed by jansson, which has the last word on what is wrong with it. Linear in the number of tensors.
 */
#include "loader/index.h"

#include "loader/foreign.h"
#include "loader/json.h"
#include "loader/members.h"
#include "loader/shown.h"
#include "manifest/fail.h"
#include "manifest/fd.h"
#include "manifest/path.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void index_fini(struct index *index)
{
	free(index->path);
	free(index->shards);
	names_fini(&index->shard_names);
	names_fini(&index->tensor_names);
	free(index->tensors);
	*index = (struct index){0};
}

static int no_memory(const struct index *index, struct ipcc_error *err)
{
	return fail(err, IPCC_NO_MEMORY, "%s: no memory", shown(index->path));
}

/* index->source.bytes of text. */
static int read_text(struct index *index, int dirfd, const char *name, char **text, struct ipcc_error *err)
{
	cleanup_fd int fd = -1;

	int r = source_open(dirfd, name, index->path, &fd, &index->source, err);
	if (r != 0)
		return r;
	if (index->source.bytes > CHECKPOINT_MAX_INDEX_BYTES)
		return fail(err, IPCC_REFUSED, "%s: %" PRIu64 " bytes; an index of more than %" PRIu64 " is not read",
			    shown(index->path), index->source.bytes, CHECKPOINT_MAX_INDEX_BYTES);
	cleanup_free char *buffer = malloc(index->source.bytes + 1);
	if (buffer == NULL)
		return fail(err, IPCC_NO_MEMORY, "%s: no memory for %" PRIu64 " bytes", shown(index->path),
			    index->source.bytes);
	r = fd_read_exact(fd, buffer, index->source.bytes, 0);
	if (r == -ENODATA)
		return fail(err, IPCC_INVALID, "%s: changed while being read: it is shorter now", shown(index->path));
	if (r < 0)
		return fail_errno(err, -r, "%s: reading %" PRIu64 " bytes at offset 0", shown(index->path),
				  index->source.bytes);
	*text = buffer;
	buffer = NULL;
	return 0;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_shard_name(const struct index *index, const char *tensor, const char *shard, struct ipcc_error *err)
{
	if (!path_stays_inside(shard))
		return fail(err, IPCC_INVALID,
			    "%s: tensor '%s' is in shard '%s': not a plain path inside the folder, refused",
			    shown(index->path), shown(tensor), shown(shard));
	if (foreign_by_name(shard) != NULL)
		return foreign_refuse(foreign_by_name(shard), shard, err);
	return 0;
}

/* One entry of the weight map. *again: the tensor was there before. */
static int add_entry(struct index *index, const char *tensor, size_t tensor_length, const char *shard,
		     size_t shard_length, bool *again, struct ipcc_error *err)
{
	uint32_t shards = index->shard_names.count, tensors = index->tensor_names.count;
	uint32_t shard_number = names_add(&index->shard_names, shard, shard_length);
	uint32_t number = names_add(&index->tensor_names, tensor, tensor_length);

	if (shard_number == NAMES_NONE || number == NAMES_NONE)
		return no_memory(index, err);
	*again = number != tensors;
	if (*again)
		return 0;
	if (tensors == SAFETENSORS_MAX_TENSORS)
		return fail(err, IPCC_REFUSED, "%s: more than %d tensors", shown(index->path), SAFETENSORS_MAX_TENSORS);
	if (shard_number == shards) {
		int r = check_shard_name(index, names_text(&index->tensor_names, number),
					 names_text(&index->shard_names, shard_number), err);
		if (r != 0)
			return r;
		if (shards == CHECKPOINT_MAX_SHARDS)
			return fail(err, IPCC_REFUSED, "%s: more than %d shards", shown(index->path),
				    CHECKPOINT_MAX_SHARDS);
	}
	if (tensors == index->tensor_room) {
		uint32_t room = index->tensor_room != 0 ? 2 * index->tensor_room : 1024;
		struct index_tensor *larger = realloc(index->tensors, room * sizeof(*larger));
		if (larger == NULL)
			return no_memory(index, err);
		index->tensors = larger;
		index->tensor_room = room;
	}
	index->tensors[number] = (struct index_tensor){.shard = shard_number};
	return 0;
}

/* 1: taken; 0: not plain, or a name is there twice; a code, negated: plain and wrong. */
static int take_plain_map(struct index *index, struct piece map, struct ipcc_error *err)
{
	struct members members = members_of(map.at, map.length);
	struct piece name, value;
	bool again;
	int more;

	if (map.at[0] != '{')
		return 0;
	while ((more = members_next(&members, &name, &value)) == 1) {
		if (!piece_is_plain_string(name) || !piece_is_plain_string(value))
			return 0;
		int r = add_entry(index, name.at + 1, name.length - 2, value.at + 1, value.length - 2, &again, err);
		if (r != 0)
			return -r;
		if (again)
			return 0;
	}
	return more == 0 && index->tensor_names.count > 0;
}

/* As take_plain_map, of the whole text. What is not the weight map is only checked to be JSON. */
static int take_plain(struct index *index, const char *text, uint64_t bytes, struct ipcc_error *err)
{
	struct members members = members_of(text, bytes);
	struct piece name, value;
	int more, taken = 0;

	while ((more = members_next(&members, &name, &value)) == 1) {
		json_t *other = NULL;
		if (!piece_is_plain_string(name))
			return 0;
		if (piece_is(name, "weight_map")) {
			taken = taken == 0 ? take_plain_map(index, value, err) : 0;
			if (taken != 1)
				return taken;
		} else if (json_read(value.at, value.length, JSON_DECODE_ANY, index->path, 0, &other, NULL) != 0) {
			return 0;
		}
		json_decref(other);
	}
	while (members.at < members.end && strchr(" \t\r\n", *members.at) != NULL && *members.at != '\0')
		members.at++;
	return more == 0 && members.at == members.end ? taken : 0;
}

static int take_document(struct index *index, json_t *document, struct ipcc_error *err)
{
	json_t *map = json_object_get(document, "weight_map"), *value;
	const char *tensor;
	bool again;

	if (!json_is_object(map))
		return fail(err, IPCC_INVALID, "%s: no object 'weight_map' in it: not an index of safetensors shards",
			    shown(index->path));
	if (json_object_size(map) == 0)
		return fail(err, IPCC_INVALID, "%s: its weight_map is empty", shown(index->path));
	json_object_foreach(map, tensor, value)
	{
		if (!json_is_string(value))
			return fail(err, IPCC_INVALID, "%s: the shard of tensor '%s' is not a string",
				    shown(index->path), shown(tensor));
		const char *shard = json_string_value(value);
		int r = add_entry(index, tensor, strlen(tensor), shard, strlen(shard), &again, err);
		if (r != 0)
			return r;
	}
	return 0;
}

static int parse_text(struct index *index, const char *text, uint64_t bytes, struct ipcc_error *err)
{
	json_t *document = NULL;

	names_fini(&index->shard_names);
	names_fini(&index->tensor_names);
	int r = json_read(text, bytes, JSON_REJECT_DUPLICATES, index->path, 0, &document, err);
	if (r == 0)
		r = take_document(index, document, err);
	json_decref(document);
	return r;
}

/* Shards are numbered by their names. */
static int sort_shards(struct index *index, struct ipcc_error *err)
{
	uint32_t count = index->shard_names.count;
	cleanup_free uint32_t *places = calloc(count, sizeof(*places));

	index->shards = calloc(count, sizeof(*index->shards));
	if (index->shards == NULL || places == NULL)
		return no_memory(index, err);
	index->shard_count = count;
	for (uint32_t i = 0; i < count; i++)
		index->shards[i] = names_text(&index->shard_names, i);
	qsort(index->shards, count, sizeof(*index->shards), compare_names);
	for (uint32_t i = 0; i < count; i++)
		places[names_find(&index->shard_names, index->shards[i], strlen(index->shards[i]))] = i;
	for (uint32_t i = 0; i < index->tensor_names.count; i++)
		index->tensors[i].shard = places[index->tensors[i].shard];
	return 0;
}

static int read_index(struct index *index, int dirfd, const char *name, struct ipcc_error *err)
{
	cleanup_free char *text = NULL;

	int r = read_text(index, dirfd, name, &text, err);
	if (r != 0)
		return r;
	int taken = take_plain(index, text, index->source.bytes, err);
	r = taken < 0 ? -taken : taken == 0 ? parse_text(index, text, index->source.bytes, err) : 0;
	return r == 0 ? sort_shards(index, err) : r;
}

int index_read(struct index *index, int dirfd, const char *name, const char *path, struct ipcc_error *err)
{
	struct index found = {.path = strdup(path)};

	int r = found.path != NULL ? 0 : fail(err, IPCC_NO_MEMORY, "%s: no memory", shown(path));
	if (r == 0)
		r = read_index(&found, dirfd, name, err);
	if (r != 0) {
		index_fini(&found);
		return r;
	}
	*index = found;
	return 0;
}

const char *index_tensor_of(const struct index *index, uint32_t shard)
{
	for (uint32_t i = 0; i < index->tensor_names.count; i++) {
		if (index->tensors[i].shard == shard)
			return names_text(&index->tensor_names, i);
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
	uint32_t number = names_find(&index->tensor_names, tensor, strlen(tensor));

	if (number == NAMES_NONE)
		return fail(err, IPCC_INVALID, "%s: tensor '%s' is in this shard, but not in the index",
			    shown(files[shard].header.path), shown(tensor));
	uint32_t assigned = index->tensors[number].shard;
	if (assigned == shard) {
		index->tensors[number].found = true;
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
	for (uint32_t shard = 0; shard < index->shard_count; shard++) {
		const struct safetensors *header = &files[shard].header;
		for (uint32_t i = 0; i < header->tensor_count; i++) {
			int r = check_tensor(index, files, shard, header->tensors[i].name, err);
			if (r != 0)
				return r;
		}
	}
	for (uint32_t i = 0; i < index->tensor_names.count; i++) {
		if (!index->tensors[i].found)
			return fail(err, IPCC_INVALID, "%s: tensor '%s' is missing: the index assigns it to this shard",
				    shown(files[index->tensors[i].shard].header.path),
				    shown(names_text(&index->tensor_names, i)));
	}
	return 0;
}
