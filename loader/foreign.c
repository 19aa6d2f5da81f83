/* See foreign.h. One table; the way out is a sentence that a user can act on without knowing this project. */
#include "loader/foreign.h"

#include "loader/shown.h"
#include "manifest/bytes.h"
#include "manifest/fail.h"

#include <string.h>
#include <strings.h>

struct foreign {
	const char *name;
	const char *way_out;
	const char *suffixes[5]; /* of file names, in any case */
	const char *magic;
	size_t magic_bytes;
};

#define CONVERT_PICKLE                                                                                                 \
	"It can run code when it is opened: convert it once, where you trust it: python3 -c \"import sys, torch; "     \
	"from safetensors.torch import save_file; save_file({k: v.clone() for k, v in torch.load(sys.argv[1], "        \
	"map_location='cpu', weights_only=True).items()}, 'model.safetensors')\" FILE (with transformers: "            \
	"model.save_pretrained(FOLDER))"

static const struct foreign formats[] = {
	{"a PyTorch pickle", CONVERT_PICKLE, {".bin", ".pt", ".pth", ".ckpt", ".pkl"}, "\x80\x02", 2},
	{"a pickle", CONVERT_PICKLE, {NULL}, "\x80\x03", 2},
	{"a pickle", CONVERT_PICKLE, {NULL}, "\x80\x04", 2},
	{"a pickle", CONVERT_PICKLE, {NULL}, "\x80\x05", 2},
	{"GGUF",
	 "Use the safetensors files that it was made from, or convert it with transformers: "
	 "AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=FILE).save_pretrained(OUT)",
	 {".gguf"},
	 "GGUF",
	 4},
	{"HDF5 (Keras, TensorFlow)",
	 "Convert it with transformers: AutoModel.from_pretrained(FOLDER, from_tf=True).save_pretrained(OUT)",
	 {".h5", ".hdf5", ".keras"},
	 "\x89HDF\r\n\x1a\n",
	 8},
	{"ONNX",
	 "It holds a program with its weights: use the safetensors files of the model that it was exported from",
	 {".onnx"},
	 NULL,
	 0},
	{"NumPy arrays",
	 "Convert it: python3 -c \"import sys, numpy; from safetensors.numpy import save_file; "
	 "save_file(dict(numpy.load(sys.argv[1])), 'model.safetensors')\" FILE",
	 {".npz", ".npy"},
	 "\x93NUMPY",
	 6},
	{"Flax weights (msgpack)",
	 "Convert it with transformers: AutoModel.from_pretrained(FOLDER, from_flax=True).save_pretrained(OUT)",
	 {".msgpack"},
	 NULL,
	 0},
	{"a zip archive (PyTorch's .pt and .bin, NumPy's .npz)", CONVERT_PICKLE, {NULL}, "PK\x03\x04", 4},
	{"a Git LFS pointer, not the file itself",
	 "Fetch the file: git lfs pull",
	 {NULL},
	 "version https://git-lfs",
	 23},
};

const struct foreign *foreign_by_name(const char *name)
{
	size_t length = strlen(name);

	for (size_t i = 0; i < array_length(formats); i++) {
		for (size_t k = 0; k < array_length(formats[i].suffixes) && formats[i].suffixes[k] != NULL; k++) {
			size_t suffix = strlen(formats[i].suffixes[k]);
			if (length >= suffix && strcasecmp(name + length - suffix, formats[i].suffixes[k]) == 0)
				return &formats[i];
		}
	}
	return NULL;
}

const struct foreign *foreign_by_content(const void *bytes, size_t length)
{
	for (size_t i = 0; i < array_length(formats); i++) {
		if (formats[i].magic != NULL && length >= formats[i].magic_bytes &&
		    memcmp(bytes, formats[i].magic, formats[i].magic_bytes) == 0)
			return &formats[i];
	}
	return NULL;
}

int foreign_refuse(const struct foreign *format, const char *path, struct ipcc_error *err)
{
	return fail(err, IPCC_REFUSED, "%s: this is %s; only safetensors is loaded. %s", shown(path), format->name,
		    format->way_out);
}
