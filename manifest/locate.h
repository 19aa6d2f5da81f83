/* Inside manifest/ only: how reader and validator name a place in the manifest, and the one probing loop. */
#ifndef IPCC_MANIFEST_LOCATE_H
#define IPCC_MANIFEST_LOCATE_H

#include "manifest/fail.h"
#include "manifest/reader.h"

/* A field of entry `entry` of a section, or of the header (section NULL). */
struct place {
	const char *section; /* "tensors", or NULL */
	uint32_t entry;
	const char *field; /* "shape"; NULL: the entry as a whole */
	int element;	   /* place in an array, or -1 */
	const void *at;	   /* the field's address in the manifest */
};

#define IN_ENTRY(section, entry, raw, field)	((struct place){section, entry, #field, -1, &(raw)->field})
#define IN_ARRAY(section, entry, raw, field, i) ((struct place){section, entry, #field, (int)(i), &(raw)->field[i]})
#define IN_HEADER(header, field)		((struct place){NULL, 0, #field, -1, &(header)->field})

/* IPCC_INVALID: "manifest: tensors[17].shape[2] at offset 4711: ...". */
int manifest_refuse(const void *base, struct place place, struct ipcc_error *err, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* The name of a section, as manifest_refuse() prints it. */
const char *manifest_section_name(enum manifest_section_id section);

/* manifest_find for a name of known length; *compared grows by the bytes of names compared. */
int64_t manifest_probe(const struct manifest *m, const char *name, size_t bytes, uint64_t *compared);

#endif
