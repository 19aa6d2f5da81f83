/*
 * What a manifest says, in native types: the structures that the builder takes and the reader gives, and that
 * ipc_cache.h hands on to its users; and the enumerations that broker and client exchange. Strings are NUL-terminated UTF-8; those that a reader gives point into the manifest
 * and live as long as it is mapped.
 */
#ifndef IPCC_MANIFEST_VIEWS_H
#define IPCC_MANIFEST_VIEWS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IPCC_MAX_RANK 8

/* Element types: those of the safetensors reference parser 0.8. The numbers are part of the manifest format and never
 * change. */
enum ipcc_dtype {
	IPCC_DTYPE_BOOL = 1,
	IPCC_DTYPE_F4 = 2,
	IPCC_DTYPE_F6_E2M3 = 3,
	IPCC_DTYPE_F6_E3M2 = 4,
	IPCC_DTYPE_U8 = 5,
	IPCC_DTYPE_I8 = 6,
	IPCC_DTYPE_F8_E5M2 = 7,
	IPCC_DTYPE_F8_E4M3 = 8,
	IPCC_DTYPE_F8_E8M0 = 9,
	IPCC_DTYPE_F8_E4M3FNUZ = 10,
	IPCC_DTYPE_F8_E5M2FNUZ = 11,
	IPCC_DTYPE_I16 = 12,
	IPCC_DTYPE_U16 = 13,
	IPCC_DTYPE_F16 = 14,
	IPCC_DTYPE_BF16 = 15,
	IPCC_DTYPE_I32 = 16,
	IPCC_DTYPE_U32 = 17,
	IPCC_DTYPE_F32 = 18,
	IPCC_DTYPE_C64 = 19,
	IPCC_DTYPE_F64 = 20,
	IPCC_DTYPE_I64 = 21,
	IPCC_DTYPE_U64 = 22,
};

enum ipcc_tensor_flags {
	IPCC_TENSOR_PARAMETER = 1,
	IPCC_TENSOR_BUFFER = 2,
	IPCC_TENSOR_ALIAS = 4, /* shares the bytes of tensor `alias_of` */
};

/* Who may attach a model besides its owner, if the broker's policy permits. */
enum ipcc_visibility {
	IPCC_VISIBLE_OWNER = 0,
	IPCC_VISIBLE_GROUP = 1, /* members of `visible_gid` */
	IPCC_VISIBLE_ALL = 2,
};

enum ipcc_model_state {
	IPCC_MODEL_LOADING = 1,
	IPCC_MODEL_READY = 2,
	IPCC_MODEL_DRAINING = 3, /* no new attach; goes with its last lease */
};

enum ipcc_evict_mode {
	IPCC_EVICT_IDLE = 0, /* refuse while leased (IPCC_BUSY, the message names the holders) */
	IPCC_EVICT_DRAIN,    /* no new attach; goes with its last lease. wait_ms: wait for that */
	IPCC_EVICT_FORCE,    /* the broker drops it now; holders are told, their mappings stay until they unmap */
};
/* One field of a model's key. */
struct ipcc_field {
	const char *name;
	const char *value;
};

struct ipcc_tensor {
	const char *name;
	uint32_t dtype; /* enum ipcc_dtype */
	uint32_t rank;
	uint64_t shape[IPCC_MAX_RANK];
	uint64_t strides[IPCC_MAX_RANK]; /* in elements */
	uint32_t segment;
	uint32_t flags;	 /* enum ipcc_tensor_flags */
	uint64_t offset; /* bytes from the start of the segment */
	uint64_t bytes;
	uint32_t alias_of;
};

struct ipcc_segment {
	const char *device; /* "host" or a GPU's UUID */
	uint64_t bytes;
	uint32_t handle_kind; /* 1: an fd; 2: a legacy IPC handle, in the first handle_bytes of `handle` */
	uint32_t handle_bytes;
	uint8_t handle[128];
	uint32_t block_count; /* 0: not hashed */
	uint8_t hash[16];
};

struct ipcc_source {
	const char *name; /* relative path */
	uint64_t device;
	uint64_t inode;
	uint64_t bytes;
	uint64_t mtime_ns;
	uint64_t ctime_ns;
	uint64_t stat_ns;
	uint32_t hashed; /* 1: `hash` holds the content hash */
	uint8_t hash[16];
};

struct ipcc_attribute {
	const char *name;
	const char *type;
	const void *data;
	uint64_t bytes;
};

#ifdef __cplusplus
}
#endif
#endif
