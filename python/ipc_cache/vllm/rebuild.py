"""Post-processing around final weights, for quantisation methods that vLLM itself cannot run a second time.

vLLM's hook for weights that are final already needs the method's help, and not every method gives it. For those of TABLE
we know what is left to do: each step was read off the scheme's and the kernel's own post-processing, in the releases of
READ, and everything else of a layer has come with its tensors and attributes. What is not in the table, or of another
release, is refused by name (refuse.py): a step that guesses would be wrong without an error.

A method in the table is judged by the table alone. vLLM's word is not enough: CompressedTensorsKVCacheMethod inherits
the promise from its base, and fails.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

import torch

from ipc_cache.engine.structure import modules

# Releases whose sources were read, and of which every step below holds.
READ = ("0.30.0", "0.31.0", "0.32.0")

# These leave the weights as they are in the checkpoint.
UNTOUCHED = frozenset({"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"})

_STAMP = "ipc_cache_kernel"  # attribute of a published layer: what it was laid out for
_TAGS = ("input_dim", "output_dim")  # of a final weight; everything else on a parameter is for loading it

Step = Callable[[torch.nn.Module], None]
Name = tuple[str, str, str]  # classes of a layer's method, scheme and kernel; "" where there is none


def _nothing(layer: torch.nn.Module) -> None:
    """Scales are tensors, their copies on the host attributes: both have come, and the placeholders are gone."""


def _parameters(layer: torch.nn.Module) -> None:
    """A final parameter is a plain one with the tags that the publisher's has; the skeleton's class describes the layout
    of a checkpoint, and would hide them."""
    from vllm.model_executor.parameter import BasevLLMParameter

    for name, old in list(layer._parameters.items()):
        if isinstance(old, BasevLLMParameter):
            made = torch.nn.Parameter(old.data, requires_grad=False)
            made.__dict__.update({tag: vars(old)[tag] for tag in _TAGS if tag in vars(old)})
            setattr(layer, name, made)


def _cutlass_fp8(layer: torch.nn.Module) -> None:
    """The kernel cuts off the columns that post-processing may have added to the weight."""
    _parameters(layer)
    layer.scheme.fp8_linear.logical_output_size = sum(layer.logical_widths)


def _deep_gemm(layer: torch.nn.Module) -> None:
    """The layer names the kernel whose variants are compiled before the first request."""
    _parameters(layer)
    if not getattr(layer, "is_bmm", False):
        kernel = layer.scheme.fp8_linear
        layer.deep_gemm_warmup_provider = getattr(kernel, "fallback", kernel)


def _marlin(layer: torch.nn.Module) -> None:
    """In 0.30 the kernel's locks are the layer's: scratch memory, never shared."""
    from vllm.model_executor.layers.quantization.utils import marlin_utils

    _parameters(layer)
    if release() == "0.30.0":
        layer.workspace = marlin_utils.marlin_make_workspace_new(layer.weight.device)


_LINEAR = "CompressedTensorsLinearMethod"
_INT8, _FP8 = "CompressedTensorsW8A8Int8", "CompressedTensorsW8A8Fp8"

TABLE: dict[Name, Step] = {
    ("CompressedTensorsKVCacheMethod", "", ""): _nothing,
    (_LINEAR, _INT8, "CutlassInt8ScaledMMLinearKernel"): _parameters,
    (_LINEAR, _FP8, "CutlassFP8ScaledMMLinearKernel"): _cutlass_fp8,
    (_LINEAR, _FP8, "CutlassFp8BlockScaledMMKernel"): _parameters,
    (_LINEAR, _FP8, "TritonFp8BlockScaledMMKernel"): _parameters,
    (_LINEAR, _FP8, "DeepGemmFp8BlockScaledMMKernel"): _deep_gemm,
    (_LINEAR, _FP8, "FlashInferFp8DeepGEMMDynamicBlockScaledKernel"): _deep_gemm,
    (_LINEAR, "CompressedTensorsW4A4Fp4", "MarlinNvFp4LinearKernel"): _marlin,
    (_LINEAR, "CompressedTensorsW4A4Mxfp4", "MarlinMxFp4LinearKernel"): _marlin,
}
_METHODS = frozenset(method for method, _, _ in TABLE)


def judges(layer: torch.nn.Module) -> bool:
    """Is it this table that says whether the layer's method can be rebuilt?"""
    return type(layer.quant_method).__name__ in _METHODS


def step(layer: torch.nn.Module) -> Step | None:
    """What is left to do for a layer whose tensors are final; None if that is not known."""
    return TABLE.get(names(layer)) if release() in READ else None


def names(layer: torch.nn.Module) -> Name:
    """What a layer is in the table."""
    scheme = getattr(layer, "scheme", None)
    places = ((place, name) for place in (scheme, layer.quant_method) for name in ("kernel", "fp8_linear"))
    kernel = next((found for place, name in places if (found := getattr(place, name, None)) is not None), None)
    return _name(layer.quant_method), _name(scheme), _name(kernel)


def _layout(layer: torch.nn.Module) -> str | None:
    """What decides how the layer's final weights lie: those classes, and what a mixture of experts has chosen. None where
    they lie as in the checkpoint."""
    if type(layer.quant_method).__name__ in UNTOUCHED:
        return None
    chosen = [
        f"{name}={value.name if isinstance(value, Enum) else getattr(value, '__name__', type(value).__name__)}"
        for name, value in sorted(vars(layer.quant_method).items())
        if name.endswith("backend") or name == "experts_cls"
    ]
    return " ".join(part for part in (*names(layer), *chosen) if part)


def _name(part: object) -> str:
    """vLLM's own classes only: another one of the same name is another one."""
    if part is None:
        return ""
    kind = type(part)
    return kind.__name__ if kind.__module__.startswith("vllm.") else f"{kind.__module__}.{kind.__name__}"


def release() -> str:
    """This vLLM's release, "0.30.0" say, however it was built; "" for what lies between two, which may hold anything."""
    import vllm
    from packaging.version import InvalidVersion, Version

    try:
        version = Version(vllm.__version__)
    except InvalidVersion:
        return ""
    return "" if version.is_prerelease else version.base_version


def stamp(model: torch.nn.Module) -> None:
    """On a post-processed model that is about to be exported: what each layer was laid out for."""
    for _, layer in layers(model):
        layout = _layout(layer)
        if layout is not None:
            setattr(layer, _STAMP, layout)


def mismatch(model: torch.nn.Module) -> str | None:
    """On a bound and post-processed model: the first layer that vLLM would run here with something else than it was laid
    out for. What is taken depends on installed packages, too, which no key can know, and may have the same shapes."""
    for _, layer in layers(model):
        there, here = getattr(layer, _STAMP, None), _layout(layer)
        if there != here:
            return f"{getattr(layer, 'prefix', type(layer).__name__)}: published for {there}, and here it is {here}"
    return None


def layers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Those with a quantisation method, by path; one that is registered twice is there twice."""
    return ((path, part) for path, part in modules(model) if getattr(part, "quant_method", None) is not None)


@contextmanager
def steps(model: torch.nn.Module) -> Iterator[None]:
    """Inside it vLLM's post-processing does our steps in the place of the methods' own."""
    changed = {id(layer.quant_method): layer.quant_method for _, layer in layers(model) if judges(layer)}
    try:
        for method in changed.values():
            method.supports_pre_processed_weights = True
            method.process_weights_after_loading = _run
        yield
    finally:
        for method in changed.values():
            for name in ("supports_pre_processed_weights", "process_weights_after_loading"):
                vars(method).pop(name, None)


def _run(layer: torch.nn.Module) -> None:
    found = step(layer)
    assert found is not None, names(layer)  # refuse.check_methods() came first
    found(layer)
