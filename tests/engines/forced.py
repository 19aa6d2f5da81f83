"""A model with the kernels of a GPU, on the CPU, as far as loading and post-processing go: both are torch alone. No
forward pass, and nothing of the kernels but their names and their own post-processing.

compare() publishes and attaches such a model through the plugin's loader, and says where it differs from one that
vLLM has loaded ordinarily: tensors with strides and tags, attributes, and whatever method, scheme and kernel hold.
"""

import enum
from types import SimpleNamespace

import torch

# On a parameter they serve loading, which is over.
_LOADING = ("weight_loader", "_weight_loader")
_OWN = ("ipc_cache_kernel",)  # the plugin's own mark
_OPENED = (
    "Scheme",
    "Kernel",
    "Method",
    "QuantFP8",
    "QuantKey",
    "Config",
    "CompressedTensors",
    "Cutlass",
    "QuantizationArgs",
)


def force(kernel):
    """vLLM takes this kernel class for every layer that has a choice; the plugin believes that it is on a GPU."""
    from vllm import _custom_ops
    from vllm.model_executor.kernels import linear
    from vllm.platforms import current_platform

    from ipc_cache.vllm import refuse

    kind = getattr(linear, kernel)
    for each in (kind, *(getattr(kind, name) for name in ("base_type", "fallback_type") if hasattr(kind, name))):
        each.is_supported = classmethod(lambda cls, compute_capability=None: (True, None))
        each.can_implement = classmethod(lambda cls, config: (True, None))
    for table in ("INT8", "FP8", "FP8_BLOCK", "NVFP4", "MXFP4"):
        getattr(linear, f"_POSSIBLE_{table}_KERNELS")[current_platform._enum] = [kind]
    # Of these there are none on the CPU. Where Marlin wants each bit does not matter here, but its shape does.
    _custom_ops.scaled_fp8_quant = _quantized
    _custom_ops.gptq_marlin_repack = lambda b_q_weight, size_k, size_n, **_: b_q_weight.reshape(size_k // 16, -1)
    if "Marlin" in kernel:
        from vllm.model_executor.layers.quantization.utils import marlin_utils

        marlin_utils.num_compute_units = lambda device: 132
    refuse.platform = SimpleNamespace(is_cpu=lambda: False)


def _quantized(values, scale):
    most = torch.finfo(torch.float8_e4m3fn).max
    return (values.float() / scale).clamp(-most, most).to(torch.float8_e4m3fn), scale


def _ranks():
    """One rank's process groups."""
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.utils.network_utils import get_open_port

    init_distributed_environment(1, 0, f"tcp://127.0.0.1:{get_open_port()}", 0, "gloo")
    initialize_model_parallel(1, 1)


def compare(model, kernel, without=None):
    """{"differences", "layers", "shared", "how"}; without: what to leave out, one of the functions below."""
    from jobs import config
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model_loader

    from ipc_cache.vllm import platform, publish, rebuild, report

    force(kernel)
    made = config(
        model=model, load_format="ipc_broker", model_loader_extra_config={"on_miss": "publish"}, dtype="bfloat16"
    )
    with set_current_vllm_config(made):
        _ranks()
        with publish._registrations_undone(made), platform.shareable_kernels():
            loader = publish.OrdinaryLoader(made.load_config)
            original = publish._load(loader, made, made.model_config, "")
        if without:
            globals()[f"_without_{without}"]()
        attached = get_model_loader(made.load_config).load_model(vllm_config=made, model_config=made.model_config)
    layers = sorted({" ".join(rebuild.names(m)) for m in attached.modules() if hasattr(m, "scheme")})
    differences = list(_differences(original, attached))
    return {
        "differences": differences,
        "layers": layers,
        "shared": report.loads[-1].shared,
        "how": report.loads[-1].how,
    }


def _promised(wanted):
    """Layers whose method promises that it knows final weights, and is left to itself."""
    from contextlib import contextmanager

    from ipc_cache.vllm import rebuild

    steps = rebuild.steps

    @contextmanager
    def promise(model):
        with steps(model):
            for _, layer in rebuild.layers(model):
                if rebuild.judges(layer) and wanted in rebuild.names(layer)[0]:
                    del layer.quant_method.process_weights_after_loading
            yield

    rebuild.steps = promise


def _without_steps():
    _promised("LinearMethod")


def _without_kv_cache():
    _promised("KVCacheMethod")


def _without_step():
    """Nothing is done for linear layers, and nothing fails."""
    from ipc_cache.vllm import rebuild

    for name in rebuild.TABLE:
        rebuild.TABLE[name] = rebuild._nothing


def _without_stamp():
    """The publisher's layers were laid out for another kernel."""
    from ipc_cache.vllm import rebuild

    stamp = rebuild.stamp

    def other(model):
        stamp(model)
        for _, layer in rebuild.layers(model):
            if rebuild.judges(layer):
                layer.ipc_cache_kernel += "Other"

    rebuild.stamp = other


def _built(model, kernel):
    """The skeleton of a model, with this kernel."""
    from jobs import config
    from vllm.config import set_current_vllm_config

    from ipc_cache import engine
    from ipc_cache.vllm import attach

    force(kernel)
    made = config(model=model, dtype="bfloat16")
    with set_current_vllm_config(made), attach._default_dtype(torch.bfloat16):
        _ranks()
        with engine.skeleton("cpu"):
            return attach._initialize(made, made.model_config, "")


def schemes(model, kernel):
    """The schemes of a checkpoint's layers, as vLLM reads them from its configuration."""
    found = set()
    for layer in _built(model, kernel).modules():
        if hasattr(layer, "scheme"):
            scheme = layer.scheme
            if not hasattr(scheme, "strategy"):
                found.add(type(scheme).__name__)
                continue
            strategy = getattr(scheme.strategy, "value", scheme.strategy)
            how = "static" if scheme.is_static_input_scheme else "dynamic"
            found.add(f"{type(scheme).__name__} {strategy} {how}")
    return sorted(found)


def refused(model, kernel):
    """What check_methods() says of an int8 model whose first linear layer is made another one, by what it is made."""
    import vllm
    from vllm.model_executor.kernels import linear
    from vllm.model_executor.layers.quantization import mxfp4
    from vllm.model_executor.layers.quantization.compressed_tensors import schemes
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
        compressed_tensors_moe_w8a8_fp8 as moe,
    )

    from ipc_cache.vllm import refuse

    built = _built(model, kernel)
    layer = built.model.layers[0].self_attn.qkv_proj
    method, scheme, kernel, version = layer.quant_method, layer.scheme, layer.scheme.kernel, vllm.__version__
    foreign = type(type(kernel).__name__, (type(kernel),), {"__module__": "elsewhere"})

    def message():
        try:
            refuse.check_methods(built)
        except refuse.Refused as error:
            return str(error)
        return None

    said = {"": message()}
    for kind in (linear.TritonInt8ScaledMMLinearKernel, foreign):
        scheme.kernel = object.__new__(kind)
        said[f"{kind.__module__}.{kind.__name__}" if kind is foreign else kind.__name__] = message()
    scheme.kernel = kernel
    layer.scheme = object.__new__(schemes.CompressedTensorsWNA16)
    said["CompressedTensorsWNA16"] = message()
    layer.scheme = scheme
    layer.quant_method = object.__new__(moe.CompressedTensorsW8A8Fp8MoEMethod)
    said["CompressedTensorsW8A8Fp8MoEMethod"] = message()
    layer.quant_method = object.__new__(mxfp4.Mxfp4MoEMethod)
    layer.quant_method.mxfp4_backend = mxfp4.Mxfp4MoeBackend.FLASHINFER_TRTLLM_MXFP4_MXFP8
    said["its back end"] = message()
    layer.quant_method.mxfp4_backend = mxfp4.Mxfp4MoeBackend.MARLIN
    said["Mxfp4MoEMethod"] = message()
    layer.quant_method = method
    for vllm.__version__ in ("0.29.1", "0.33.0", "0.32.1.dev5+gabc", "unknown"):
        said[f"vLLM {vllm.__version__}"] = message()
    vllm.__version__ = version
    return said


def published_as(model, kernel, version):
    """What keeps a model from being published by a plugin that believes to be in another release of vLLM: the refusal, and
    the names and types of the first quantised layer's tensors, once vLLM has loaded the checkpoint."""
    import vllm
    from jobs import config
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model_loader

    from ipc_cache.vllm import refuse

    force(kernel)
    made = config(
        model=model, load_format="ipc_broker", model_loader_extra_config={"on_miss": "publish"}, dtype="bfloat16"
    )
    found, check = {}, refuse.check_methods

    def checked(built):
        layer = built.model.layers[0].self_attn.qkv_proj
        found.update((name, str(tensor.dtype)) for name, tensor in layer.named_parameters())
        check(built)

    refuse.check_methods = checked
    with set_current_vllm_config(made):
        _ranks()
        vllm.__version__ = version
        try:
            get_model_loader(made.load_config).load_model(vllm_config=made, model_config=made.model_config)
        except refuse.Refused as error:
            return str(error), found
    return None, found


def _differences(original, attached):
    first, second = dict(original.named_modules()), dict(attached.named_modules())
    if first.keys() != second.keys():
        yield f"modules {sorted(first.keys() ^ second.keys())}"
    for path in first:
        a, b = (dict(_flat(path, _described(part))) for part in (first[path], second[path]))
        for name in sorted(a.keys() | b.keys()):
            if a.get(name, "missing") != b.get(name, "missing"):
                yield f"{name}: {a.get(name, 'missing')} != {b.get(name, 'missing')}"


def _flat(name, value):
    """(dotted name, value) of what nested dicts hold."""
    if not isinstance(value, dict):
        yield name, value
        return
    for part, below in value.items():
        yield from _flat(f"{name}.{part}", below)


def _described(module):
    own = {n: v for n, v in vars(module).items() if n not in vars(torch.nn.Module()) and n not in _OWN}
    registered = {**module._parameters, **module._buffers}
    kinds = {f"({n})": "parameter" if n in module._parameters else "buffer" for n in registered}
    return {"(class)": type(module).__name__, **kinds, **{n: _value(v) for n, v in {**own, **registered}.items()}}


def _value(value, depth=0):
    """Something that can be compared: a tensor with all that is on it, values, and vLLM's own objects by their parts."""
    from job import digest

    if isinstance(value, torch.Tensor):
        tags = {n: _value(v, depth + 1) for n, v in vars(value).items() if n not in _LOADING}
        strides = list(value.stride()) if value.numel() > 1 else None
        return {"(is)": [type(value).__name__, str(value.dtype), list(value.shape), strides, digest(value)], **tags}
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, enum.Enum)):
        return str(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_value(entry, depth + 1) for entry in value]
    if isinstance(value, dict):
        return {str(n): _value(v, depth + 1) for n, v in value.items()} if depth < 3 else len(value)
    kind = type(value).__name__
    if depth < 4 and hasattr(value, "__dict__") and any(part in kind for part in _OPENED):
        return {"(class)": kind, **{n: _value(v, depth + 1) for n, v in vars(value).items()}}
    return kind
