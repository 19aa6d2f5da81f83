/*
 * A Python list of views of all tensors, made in one call; see ipc_cache.h. Making them one by one in Python costs 4 us
 * each, here 0.3 us.
 *
 * Neither Python nor any framework is linked: the caller passes the functions. Invariant: a view is made only of an entry
 * that was checked to lie in its segment, since the framework's function checks nothing. That it ends in the caller's copy of
 * a part of the segment is the caller's promise.
 */
#include "broker/client/client.h"

#include "manifest/dtype.h"
#include "manifest/fail.h"

static bool same_view(const struct ipcc_tensor *a, const struct ipcc_tensor *b)
{
	return a->dtype == b->dtype && a->rank == b->rank && a->segment == b->segment && a->offset == b->offset &&
	       memcmp(a->shape, b->shape, a->rank * sizeof(*a->shape)) == 0 &&
	       memcmp(a->strides, b->strides, a->rank * sizeof(*a->strides)) == 0;
}

/* Two elements of 4 bits are one of the frameworks', along the last dimension, where they must lie side by side. */
static int pack_shape(const struct ipcc_tensor *t, int64_t *shape, int64_t *strides, struct ipcc_error *err)
{
	uint32_t last = t->rank - 1;
	bool whole = t->rank > 0 && t->shape[last] % 2 == 0 && t->strides[last] <= 1;
	for (uint32_t d = 0; whole && d < last; d++) {
		whole = t->strides[d] % 2 == 0;
		strides[d] /= 2;
	}
	if (!whole)
		return fail(err, IPCC_INVALID, "tensor %.200s: its 4-bit elements are no whole bytes", t->name);
	shape[last] /= 2;
	return IPCC_OK;
}

/* Of which set and segment a view is. */
static size_t place_of(const struct ipcc_views *views, const struct ipcc_model *model, uint32_t i,
		       const struct ipcc_tensor *t)
{
	return (views->sets != NULL ? (size_t)views->sets[i] * model->facts.segments : 0) + t->segment;
}

static int make_view(const struct ipcc_views *views, size_t place, const struct ipcc_tensor *t, struct ipcc_error *err)
{
	uint64_t begin = views->begins != NULL ? views->begins[place] : 0;
	int64_t shape[IPCC_MAX_RANK], strides[IPCC_MAX_RANK];
	uint32_t bits = dtype_bits(t->dtype), bytes = bits / 8 + (bits < 8);
	void *view;
	for (uint32_t d = 0; d < t->rank; d++) {
		shape[d] = (int64_t)t->shape[d];
		strides[d] = (int64_t)t->strides[d];
	}
	int rc = bits < 8 ? pack_shape(t, shape, strides, err) : IPCC_OK;
	if (rc != IPCC_OK)
		return rc;
	if (t->offset % bytes != 0 || begin % bytes != 0 || t->offset < begin)
		return fail(err, IPCC_INVALID, "tensor %.200s begins in the middle of an element", t->name);
	if (views->view(views->bases[place * IPCC_VIEW_DTYPES + t->dtype], t->rank, shape, strides,
			(int64_t)((t->offset - begin) / bytes), &view) != 0)
		return fail(err, IPCC_FAILED, "tensor %.200s: the framework cannot make a view of it", t->name);
	void *capsule = views->capsule(view, NULL, NULL);
	if (capsule == NULL) {
		views->discard(view);
		return fail(err, IPCC_NO_MEMORY, "no memory for a view of %.200s", t->name);
	}
	views->set(views->list, (ssize_t)views->made, capsule); /* takes the capsule over */
	return IPCC_OK;
}

static int add_name(const struct ipcc_views *views, uint32_t i, const struct ipcc_tensor *t, struct ipcc_error *err)
{
	void *name = views->text(t->name, (ssize_t)strlen(t->name), "surrogateescape");
	if (name == NULL)
		return fail(err, IPCC_NO_MEMORY, "no memory for the name of tensor %u", i);
	views->set(views->names, (ssize_t)i, name); /* takes it over */
	return IPCC_OK;
}

/* What becomes of a tensor: a view, its owner's, or nothing. */
static int add_view(const struct ipcc_model *model, struct ipcc_views *views, uint32_t i, struct ipcc_error *err)
{
	struct ipcc_tensor t, owner;
	int rc = manifest_tensor(&model->manifest, i, &t, err);
	if (rc != IPCC_OK)
		return rc;
	rc = add_name(views, i, &t, err);
	if (rc != IPCC_OK)
		return rc;
	views->places[i] = IPCC_VIEW_NONE;
	if ((t.flags & IPCC_TENSOR_ALIAS) && manifest_tensor(&model->manifest, t.alias_of, &owner, NULL) == IPCC_OK &&
	    t.alias_of < i && same_view(&t, &owner) &&
	    (views->sets == NULL || views->sets[i] == views->sets[t.alias_of])) {
		views->places[i] = views->places[t.alias_of];
		return IPCC_OK;
	}
	size_t place = place_of(views, model, i, &t);
	if (t.bytes == 0 || t.dtype >= IPCC_VIEW_DTYPES || views->bases[place * IPCC_VIEW_DTYPES + t.dtype] == NULL)
		return IPCC_OK;
	rc = make_view(views, place, &t, err);
	if (rc == IPCC_OK)
		views->places[i] = views->made++;
	return rc;
}

EXPORT int ipcc_views(const struct ipcc_model *model, struct ipcc_views *views, struct ipcc_error *err)
{
	int rc = IPCC_OK;
	for (uint32_t i = 0; rc == IPCC_OK && i < model->facts.tensors; i++)
		rc = add_view(model, views, i, err);
	return rc;
}
