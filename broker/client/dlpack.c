/*
 * DLPack tensors over a mapped model, so that frameworks read it without a copy; see ipc_cache.h.
 *
 * Invariant: every managed tensor is one user of its model, from the moment it is made until its deleter ran; a model with
 * users stays mapped. The structures are DLPack's ABI (dlpack.h 1.1), declared here as far as they are used.
 */
#include "broker/client/client.h"

#include "loader/device/device.h"
#include "manifest/dtype.h"
#include "manifest/fail.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

struct dl_device {
	int32_t type; /* enum ipcc_dlpack_device */
	int32_t number;
};

struct dl_type {
	uint8_t code; /* enum dl_code */
	uint8_t bits;
	uint16_t lanes;
};

struct dl_tensor {
	void *data;
	struct dl_device device;
	int32_t rank;
	struct dl_type type;
	int64_t *shape;
	int64_t *strides;
	uint64_t byte_offset;
};

struct dl_managed {
	struct dl_tensor tensor;
	void *context;
	void (*deleter)(struct dl_managed *self);
};

struct dl_managed_versioned {
	uint32_t major, minor;
	void *context;
	void (*deleter)(struct dl_managed_versioned *self);
	uint64_t flags;
	struct dl_tensor tensor;
};

#define DL_MAJOR     1
#define DL_MINOR     1
#define DL_READ_ONLY 1

enum dl_code {
	DL_INT = 0,
	DL_UINT = 1,
	DL_FLOAT = 2,
	DL_BFLOAT = 4,
	DL_COMPLEX = 5,
	DL_BOOL = 6,
	DL_F8_E4M3FN = 10,
	DL_F8_E4M3FNUZ = 11,
	DL_F8_E5M2 = 12,
	DL_F8_E5M2FNUZ = 13,
	DL_F8_E8M0FNU = 14,
	DL_F6_E2M3FN = 15,
	DL_F6_E3M2FN = 16,
	DL_F4_E2M1FN = 17,
};

static const uint8_t type_codes[] = {
	[IPCC_DTYPE_BOOL] = DL_BOOL,
	[IPCC_DTYPE_F4] = DL_F4_E2M1FN,
	[IPCC_DTYPE_F6_E2M3] = DL_F6_E2M3FN,
	[IPCC_DTYPE_F6_E3M2] = DL_F6_E3M2FN,
	[IPCC_DTYPE_U8] = DL_UINT,
	[IPCC_DTYPE_I8] = DL_INT,
	[IPCC_DTYPE_F8_E5M2] = DL_F8_E5M2,
	[IPCC_DTYPE_F8_E4M3] = DL_F8_E4M3FN,
	[IPCC_DTYPE_F8_E8M0] = DL_F8_E8M0FNU,
	[IPCC_DTYPE_F8_E4M3FNUZ] = DL_F8_E4M3FNUZ,
	[IPCC_DTYPE_F8_E5M2FNUZ] = DL_F8_E5M2FNUZ,
	[IPCC_DTYPE_I16] = DL_INT,
	[IPCC_DTYPE_U16] = DL_UINT,
	[IPCC_DTYPE_F16] = DL_FLOAT,
	[IPCC_DTYPE_BF16] = DL_BFLOAT,
	[IPCC_DTYPE_I32] = DL_INT,
	[IPCC_DTYPE_U32] = DL_UINT,
	[IPCC_DTYPE_F32] = DL_FLOAT,
	[IPCC_DTYPE_C64] = DL_COMPLEX,
	[IPCC_DTYPE_F64] = DL_FLOAT,
	[IPCC_DTYPE_I64] = DL_INT,
	[IPCC_DTYPE_U64] = DL_UINT,
};

/* A managed tensor of either form, and what it points to. */
struct view {
	union {
		struct dl_managed plain; /* first: deleters get its address */
		struct dl_managed_versioned versioned;
	};
	struct ipcc_model *model;
	int64_t shape[IPCC_MAX_RANK];
	int64_t strides[IPCC_MAX_RANK];
};

static void drop_plain(struct dl_managed *self)
{
	struct view *view = (struct view *)self;
	model_drop(view->model);
	free(view);
}

static void drop_versioned(struct dl_managed_versioned *self)
{
	struct view *view = (struct view *)self;
	model_drop(view->model);
	free(view);
}

/* "cuda:3" as DLPack says it. */
static int read_alias(const char *alias, enum ipcc_dlpack_device *kind, int *number)
{
	const char *colon = strchr(alias, ':');
	if (colon == NULL)
		return IPCC_NOT_FOUND;
	*kind = strncmp(alias, "hip", 3) == 0 ? IPCC_DLPACK_ROCM : IPCC_DLPACK_CUDA;
	*number = atoi(colon + 1);
	return IPCC_OK;
}

EXPORT int ipcc_dlpack_device(const struct ipcc_model *model, uint32_t segment, enum ipcc_dlpack_device *kind,
			      int *number, struct ipcc_error *err)
{
	struct ipcc_segment s;
	char alias[DEVICE_ALIAS_BYTES];
	int rc = ipcc_segment(model, segment, &s, err);
	if (rc != IPCC_OK)
		return rc;
	if (strcmp(s.device, DEVICE_HOST) == 0) {
		*kind = IPCC_DLPACK_CPU;
		*number = 0;
		return IPCC_OK;
	}
	rc = device_alias(s.device, alias, err);
	if (rc != IPCC_OK) {
		fail_within(err, "segment %u", segment);
		return rc;
	}
	rc = read_alias(alias, kind, number);
	return rc == IPCC_OK ? IPCC_OK : fail(err, rc, "segment %u: %s is no GPU's number", segment, alias);
}

/* Where the view begins; the view lies in its mapped segment. */
static int find_bytes(const struct ipcc_model *model, const struct ipcc_tensor *t, void **address,
		      struct ipcc_error *err)
{
	uint64_t bits = 0;
	struct ipcc_tensor whole = *t;
	if (!model->mapped || model->suspended)
		return fail(err, IPCC_USAGE, "map the model before its tensors are used");
	if (t->rank > IPCC_MAX_RANK || !dtype_view_bits(t->dtype, t->shape, t->strides, t->rank, &bits))
		return fail(err, IPCC_USAGE, "a view of dtype %u and rank %u is none", t->dtype, t->rank);
	whole.bytes = bits / 8 + (bits % 8 != 0);
	*address = ipcc_address(model, &whole);
	if (*address == NULL)
		return fail(err, IPCC_USAGE, "%llu bytes at offset %llu are not inside segment %u",
			    (unsigned long long)whole.bytes, (unsigned long long)t->offset, t->segment);
	return IPCC_OK;
}

static bool is_private(const struct ipcc_model *model)
{
	return (model->map_flags & IPCC_MAP_PRIVATE) != 0;
}

static void fill_tensor(struct view *view, struct dl_tensor *to, const struct ipcc_tensor *from)
{
	to->rank = (int32_t)from->rank;
	to->type = (struct dl_type){type_codes[from->dtype], (uint8_t)dtype_bits(from->dtype), 1};
	for (uint32_t d = 0; d < from->rank; d++) {
		view->shape[d] = (int64_t)from->shape[d];
		view->strides[d] = (int64_t)from->strides[d];
	}
	to->shape = view->shape;
	to->strides = view->strides;
}

EXPORT int ipcc_dlpack(struct ipcc_model *model, const struct ipcc_tensor *tensor, bool versioned, void **managed,
		       struct ipcc_error *err)
{
	enum ipcc_dlpack_device kind;
	int number;
	struct dl_tensor made = {0};
	int rc = find_bytes(model, tensor, &made.data, err);
	if (rc == IPCC_OK)
		rc = ipcc_dlpack_device(model, tensor->segment, &kind, &number, err);
	if (rc != IPCC_OK)
		return rc;
	struct view *view = calloc(1, sizeof(*view));
	if (view == NULL)
		return fail_errno(err, ENOMEM, "cannot make a DLPack tensor");
	made.device = (struct dl_device){(int32_t)kind, number};
	fill_tensor(view, &made, tensor);
	if (versioned)
		view->versioned = (struct dl_managed_versioned){.major = DL_MAJOR,
								.minor = DL_MINOR,
								.deleter = drop_versioned,
								.flags = is_private(model) ? 0 : DL_READ_ONLY,
								.tensor = made};
	else
		view->plain = (struct dl_managed){.tensor = made, .deleter = drop_plain};
	view->model = model;
	atomic_fetch_add(&model->users, 1);
	*managed = view;
	return IPCC_OK;
}

/* Python's functions, found where it runs. Nothing may be raised here, nor may an exception that is under way be touched: these
 * two do neither for a valid capsule. */
EXPORT void ipcc_capsule_drop(void *capsule)
{
	int (*is_valid)(void *, const char *) = (int (*)(void *, const char *))dlsym(RTLD_DEFAULT, "PyCapsule_IsValid");
	void *(*get)(void *, const char *) =
		(void *(*)(void *, const char *))dlsym(RTLD_DEFAULT, "PyCapsule_GetPointer");
	if (is_valid == NULL || get == NULL)
		return;
	if (is_valid(capsule, "dltensor")) {
		struct dl_managed *managed = get(capsule, "dltensor");
		managed->deleter(managed);
	} else if (is_valid(capsule, "dltensor_versioned")) {
		struct dl_managed_versioned *managed = get(capsule, "dltensor_versioned");
		managed->deleter(managed);
	}
}
