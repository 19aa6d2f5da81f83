/*
 * The manifest format: what a resident model is, in one flat, position-independent byte string.
 *
 *	header | fields | segments | tensors | index | sources | blocks | attributes | strings | data
 *
 * Invariants (the validator enforces all of them, see validate.c):
 *   - everything is little-endian; the sections follow the header in the order of enum manifest_section_id, each at the
 *     next multiple of MANIFEST_ALIGNMENT after the one before, the bytes skipped are zero, and total_bytes is where the
 *     last one ends: equal content has one layout;
 *   - the checksum is XXH3-64 over all total_bytes with the checksum's own eight bytes taken as zero;
 *   - a string is {offset, bytes} into the strings section, valid UTF-8 without NUL, followed by one NUL byte;
 *   - fields are sorted by name (as bytes) and unique: they are the key, and equal keys have equal bytes; sources and
 *     attributes are sorted by name and unique too;
 *   - a legacy handle is no host's and no two segments have the same;
 *   - there is a segment, unless there is no tensor; the hashed segments' blocks follow each other in segment order;
 *   - tensors are sorted by (segment, offset), so that overlaps show in one pass; only an alias may share bytes, and
 *     only bytes of the tensor it names, which is no alias itself; one without elements has 0 bytes and lies anywhere;
 *   - a tensor's bytes hold its strided view, and are exactly those of its elements when the view has no gaps;
 *   - every tensor is found through the index within MANIFEST_MAX_PROBE steps.
 *
 * Compatibility: a reader refuses another major version and any incompatible flag it does not know; it ignores unknown
 * compatible flags and whatever a newer minor version appends to an entry (entry_bytes is the stride).
 *
 * ipc-cache-manifest(5) describes the same for readers in other languages.
 */
#ifndef IPCC_MANIFEST_FORMAT_H
#define IPCC_MANIFEST_FORMAT_H

#include "manifest/bytes.h"

#define MANIFEST_MAGIC	   "IPCCMNF\n"
#define MANIFEST_MAJOR	   1
#define MANIFEST_MINOR	   0
#define MANIFEST_ALIGNMENT 64

/* Limits. The whole manifest is bounded so that the broker can copy and check a hostile one at leisure. */
#define MANIFEST_MAX_BYTES ((uint64_t)64 << 20)
#define MANIFEST_MAX_RANK  8
/* One reply carries the manifest and all segments; a message carries at most 253 fds (SCM_MAX_FD). */
#define MANIFEST_MAX_SEGMENTS	     252
#define MANIFEST_MAX_FIELDS	     64
#define MANIFEST_MAX_FIELD_NAME	     63
#define MANIFEST_MAX_FIELD_VALUE     4096
#define MANIFEST_MAX_KEY_BYTES	     16384 /* all names and values together */
#define MANIFEST_MAX_NAME	     255   /* of a model */
#define MANIFEST_MAX_TENSOR_NAME     4096
#define MANIFEST_MAX_SOURCE_NAME     4096
#define MANIFEST_MAX_ATTRIBUTE_NAME  255
#define MANIFEST_MAX_ATTRIBUTE_TYPE  255
#define MANIFEST_MAX_DEVICE	     63 /* [A-Za-z0-9_.:-] */
#define MANIFEST_MAX_PROBE	     128
#define MANIFEST_LEGACY_HANDLE_BYTES 128

/* Where tensors begin; engines expect what their allocators give. */
#define MANIFEST_TENSOR_ALIGNMENT 256

enum manifest_section_id {
	SECTION_FIELDS,
	SECTION_SEGMENTS,
	SECTION_TENSORS,
	SECTION_INDEX, /* le32: 0 for empty, else tensor number + 1; a power of two of slots */
	SECTION_SOURCES,
	SECTION_BLOCKS, /* 16-byte XXH3-128 of each block of each segment */
	SECTION_ATTRIBUTES,
	SECTION_STRINGS, /* bytes */
	SECTION_DATA,	 /* bytes: the attributes' contents */
	SECTION_COUNT
};

struct manifest_string {
	le32 offset;
	le32 bytes; /* without the NUL */
};

struct manifest_section {
	le64 offset;
	le32 entry_bytes;
	le32 count;
};

struct manifest_header {
	uint8_t magic[8];
	le16 major;
	le16 minor;
	le32 header_bytes;
	le64 total_bytes;
	le64 checksum;
	le32 compatible;
	le32 incompatible;
	/* The broker's stamp; all zero in a draft. */
	uint8_t instance[16]; /* random, one per broker process */
	le64 generation;      /* counts commits of one broker */
	le64 created_ns;      /* CLOCK_REALTIME of the commit */
	le32 owner_uid;	      /* from SO_PEERCRED */
	le32 publisher_pid;
	le32 visibility; /* enum ipcc_visibility */
	le32 visible_gid;
	/* The publisher's. */
	struct manifest_string name; /* display name; not part of the key */
	le64 block_bytes;
	le64 index_seed;
	struct manifest_section sections[SECTION_COUNT];
};

struct manifest_field {
	struct manifest_string name;
	struct manifest_string value;
};

enum manifest_handle {
	HANDLE_FD = 1, /* the fd at the same position of the broker's reply */
	/* handle_bytes of `handle`: a legacy IPC handle, as the driver of the segment's device gives it to the process that
	 * holds the memory (the keeper). It names a whole allocation, so the segment begins where that begins. */
	HANDLE_LEGACY = 2,
};
/* What a driver's structure has: 64 for CUDA and HIP, 128 for MACA. */
#define MANIFEST_IS_LEGACY_SIZE(bytes) ((bytes) == 64 || (bytes) == MANIFEST_LEGACY_HANDLE_BYTES)

struct manifest_segment {
	struct manifest_string device; /* "host", or a GPU's UUID as "GPU-..." */
	le64 bytes;		       /* more than 0 */
	le32 handle_kind;
	le32 handle_bytes; /* 0 for HANDLE_FD */
	le32 first_block;  /* in SECTION_BLOCKS */
	le32 block_count;  /* 0: not hashed */
	uint8_t hash[16];  /* XXH3-128 over the block hashes */
	uint8_t handle[MANIFEST_LEGACY_HANDLE_BYTES];
};

struct manifest_tensor {
	struct manifest_string name;
	le32 dtype; /* enum ipcc_dtype */
	le32 rank;
	le64 shape[MANIFEST_MAX_RANK];	 /* unused places are 0 */
	le64 strides[MANIFEST_MAX_RANK]; /* in elements, never negative */
	le32 segment;
	le32 flags;  /* enum ipcc_tensor_flags */
	le64 offset; /* in the segment */
	le64 bytes;
	le32 alias_of; /* with IPCC_TENSOR_ALIAS: number of the tensor that owns the bytes */
	le32 reserved;
};

/* A file that was written so shortly before it was looked at could be written again without a change of its times: two
 * seconds is the coarsest granularity in use (FAT). */
#define MANIFEST_RACY_NS UINT64_C(2000000000)
/* A change time that is no whole second comes from a file system that counts in the kernel's ticks, 10 ms at most. */
#define MANIFEST_RACY_TICK_NS UINT64_C(20000000)

/* When a file with these times can no longer be changed without it showing in them. */
static inline uint64_t manifest_settled_ns(uint64_t mtime_ns, uint64_t ctime_ns)
{
	uint64_t racy = ctime_ns % 1000000000 == 0 ? MANIFEST_RACY_NS : MANIFEST_RACY_TICK_NS;
	return mtime_ns + MANIFEST_RACY_NS > ctime_ns + racy ? mtime_ns + MANIFEST_RACY_NS : ctime_ns + racy;
}

/* How long after `stat_ns` that will be. 0: the times prove it already, or lie in the future and never will. */
static inline uint64_t manifest_unsettled_ns(uint64_t mtime_ns, uint64_t ctime_ns, uint64_t stat_ns)
{
	uint64_t settled = manifest_settled_ns(mtime_ns, ctime_ns);
	return mtime_ns > stat_ns || ctime_ns > stat_ns || settled <= stat_ns ? 0 : settled - stat_ns;
}

struct manifest_source {
	struct manifest_string name; /* relative to the model's folder, or the file's name */
	le64 device;
	le64 inode;
	le64 bytes;
	le64 mtime_ns;
	le64 ctime_ns;
	le64 stat_ns; /* CLOCK_REALTIME when these were read: an mtime within MANIFEST_RACY_NS of it proves nothing */
	le32 hashed;  /* 1: hash is the content hash (hash.h) of the whole file */
	le32 reserved;
	uint8_t hash[16];
};

struct manifest_block {
	uint8_t hash[16];
};

struct manifest_attribute {
	struct manifest_string name;
	struct manifest_string type; /* free text, as "application/json" */
	le64 offset;		     /* in SECTION_DATA */
	le64 bytes;
};

_Static_assert(sizeof(struct manifest_header) == 256, "manifest_header is an ABI");
_Static_assert(sizeof(struct manifest_field) == 16, "manifest_field is an ABI");
_Static_assert(sizeof(struct manifest_segment) == 176, "manifest_segment is an ABI");
_Static_assert(sizeof(struct manifest_tensor) == 176, "manifest_tensor is an ABI");
_Static_assert(sizeof(struct manifest_source) == 80, "manifest_source is an ABI");
_Static_assert(sizeof(struct manifest_attribute) == 32, "manifest_attribute is an ABI");
_Static_assert(sizeof(struct manifest_block) == 16, "manifest_block is an ABI");
_Static_assert(offsetof(struct manifest_header, checksum) == 24, "the checksum's place is an ABI");

#endif
