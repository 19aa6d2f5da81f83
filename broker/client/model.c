/* An attached model: everything that is read from its manifest; see ipc_cache.h. */
#include "broker/client/client.h"

#include "bpf/probes.h"
#include "manifest/fail.h"

EXPORT void ipcc_probe_phase(const struct ipcc_model *model, const char *phase, uint64_t start_ns, uint64_t end_ns)
{
	PROBE_PHASE_FINISHED(model, phase, start_ns, end_ns);
}

EXPORT void ipcc_model_facts(const struct ipcc_model *model, struct ipcc_model_facts *facts)
{
	*facts = model->facts;
}

int model_check_number(const struct ipcc_model *model, enum manifest_section_id section, uint32_t i, const char *what,
		       struct ipcc_error *err)
{
	uint32_t count = manifest_count(&model->manifest, section);
	return i < count ? IPCC_OK : fail(err, IPCC_NOT_FOUND, "%s %u of %u", what, i, count);
}

EXPORT int ipcc_tensor(const struct ipcc_model *model, uint32_t i, struct ipcc_tensor *tensor, struct ipcc_error *err)
{
	int rc = model_check_number(model, SECTION_TENSORS, i, "tensor", err);
	return rc != IPCC_OK ? rc : manifest_tensor(&model->manifest, i, tensor, err);
}

EXPORT int ipcc_segment(const struct ipcc_model *model, uint32_t i, struct ipcc_segment *segment,
			struct ipcc_error *err)
{
	int rc = model_check_number(model, SECTION_SEGMENTS, i, "segment", err);
	return rc != IPCC_OK ? rc : manifest_segment(&model->manifest, i, segment, err);
}

EXPORT int ipcc_source(const struct ipcc_model *model, uint32_t i, struct ipcc_source *source, struct ipcc_error *err)
{
	int rc = model_check_number(model, SECTION_SOURCES, i, "source", err);
	return rc != IPCC_OK ? rc : manifest_source(&model->manifest, i, source, err);
}

EXPORT int ipcc_attribute(const struct ipcc_model *model, uint32_t i, struct ipcc_attribute *attribute,
			  struct ipcc_error *err)
{
	int rc = model_check_number(model, SECTION_ATTRIBUTES, i, "attribute", err);
	return rc != IPCC_OK ? rc : manifest_attribute(&model->manifest, i, attribute, err);
}

EXPORT int ipcc_field(const struct ipcc_model *model, uint32_t i, struct ipcc_field *field, struct ipcc_error *err)
{
	int rc = model_check_number(model, SECTION_FIELDS, i, "field", err);
	return rc != IPCC_OK ? rc : manifest_field(&model->manifest, i, field, err);
}

EXPORT int ipcc_find(const struct ipcc_model *model, const char *name, struct ipcc_tensor *tensor,
		     struct ipcc_error *err)
{
	int64_t i = manifest_find(&model->manifest, name);
	if (i < 0)
		return fail(err, IPCC_NOT_FOUND,
			    "model %s has no tensor named %.200s; ipc-cache dump --tensors lists them",
			    model->facts.name, name);
	return manifest_tensor(&model->manifest, (uint32_t)i, tensor, err);
}
