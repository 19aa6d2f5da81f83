/* See loader_files.h. */
#include "tests/unit/loader_files.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void files_init(struct files *files)
{
	strcpy(files->folder, "/tmp/ipcc-loader-XXXXXX");
	cr_assert_not_null(mkdtemp(files->folder));
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *walk)
{
	(void)st, (void)kind, (void)walk;
	return remove(path);
}

void files_fini(struct files *files)
{
	nftw(files->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *files_path(const struct files *files, const char *name)
{
	static char paths[4][512];
	static unsigned next;
	char *path = paths[next++ % 4];

	snprintf(path, sizeof(paths[0]), "%s/%s", files->folder, name);
	return path;
}

static void make_parents(const char *path)
{
	char copy[512];

	snprintf(copy, sizeof(copy), "%s", path);
	for (char *slash = strchr(copy + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(copy, 0755);
		*slash = '/';
	}
}

static FILE *create(const struct files *files, const char *name)
{
	const char *path = files_path(files, name);

	make_parents(path);
	FILE *file = fopen(path, "wb");
	cr_assert_not_null(file, "%s", path);
	return file;
}

void files_write(const struct files *files, const char *name, const void *bytes, size_t length)
{
	FILE *file = create(files, name);

	cr_assert_eq(fwrite(bytes, 1, length, file), length);
	cr_assert_eq(fclose(file), 0);
}

void files_write_text(const struct files *files, const char *name, const char *text)
{
	files_write(files, name, text, strlen(text));
}

void files_write_tensors(const struct files *files, const char *name, const char *header, size_t data_bytes,
			 unsigned seed)
{
	FILE *file = create(files, name);
	uint64_t length = strlen(header);

	for (unsigned i = 0; i < 8; i++)
		fputc((int)(length >> (8 * i) & 0xff), file);
	fputs(header, file);
	for (size_t i = 0; i < data_bytes; i++)
		putc_unlocked((int)((i * 2654435761u + seed) >> 7 & 0xff), file);
	cr_assert_eq(fclose(file), 0);
}

uint8_t *files_read(const char *path, size_t *length)
{
	struct stat st;
	FILE *file = fopen(path, "rb");

	cr_assert_not_null(file, "%s", path);
	cr_assert_eq(fstat(fileno(file), &st), 0);
	uint8_t *bytes = malloc((size_t)st.st_size + 1);
	cr_assert_not_null(bytes);
	*length = fread(bytes, 1, (size_t)st.st_size, file);
	cr_assert_eq(*length, (size_t)st.st_size);
	fclose(file);
	return bytes;
}

void expect_error(int result, const struct ipcc_error *err, int code, const char *part)
{
	cr_assert_eq(result, code, "code %d instead of %d: %s", result, code, err->message);
	cr_assert_eq(err->code, code);
	cr_assert_not_null(strstr(err->message, part), "'%s' is not in '%s'", part, err->message);
}
