"""Where weights live, and what the CPU platform must not do to them.

On a GPU vLLM leaves tensors that another process can use. On the CPU it packs every Linear weight into an opaque object of
this process and empties the parameter. Publisher and attacher both post-process under shareable_kernels(), which keeps the
weights and computes with torch's own matrix product; everything else is the same on every platform.
"""

import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_PACKER = "dispatch_cpu_unquantized_gemm"


class UnsupportedLayer(RuntimeError):
    """A layer whose CPU form cannot be shared."""


def is_cpu() -> bool:
    from vllm.platforms import current_platform

    return current_platform.is_cpu()


def rank() -> int:
    """This process's place among all ranks of the engine; 0 before vLLM has set them up."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def device_name(target: torch.device) -> str:
    """The broker's name for `target`: "host", or "cuda:N" as this process counts."""
    if target.type == "cpu":
        return "host"
    index = target.index if target.index is not None else torch.accelerator.current_device_index()
    return f"{target.type}:{index}"


def target_device(vllm_config) -> torch.device:
    """Where vLLM wants the weights, with its index."""
    load = vllm_config.load_config.device
    device = torch.device(vllm_config.device_config.device if load is None else load)
    if device.type != "cpu" and device.index is None:
        device = torch.device(device.type, torch.accelerator.current_device_index())
    return device


def capability() -> str:
    """What of the machine decides layouts: the GPU's compute capability, or the CPU's instruction sets."""
    from vllm.platforms import current_platform

    if not is_cpu():
        found = current_platform.get_device_capability()
        name = getattr(current_platform, "device_name", "gpu")
        return f"{name} {found.as_version_str()}" if found is not None else str(name)
    sets = [
        name
        for name, probe in (
            ("avx512", "_is_avx512_supported"),
            ("avx512_bf16", "_is_avx512_bf16_supported"),
            ("amx", "_is_amx_tile_supported"),
        )
        if getattr(torch.cpu, probe, bool)()
    ]
    return " ".join(["cpu", platform.machine(), *sets])


@contextmanager
def shareable_kernels() -> Iterator[None]:
    """On the CPU: Linear layers keep their weight while post-processing runs inside. Elsewhere nothing changes."""
    places = _importers() if is_cpu() else []
    for module, _ in places:
        setattr(module, _PACKER, _keep_weight)
    try:
        yield
    finally:
        for module, original in places:
            setattr(module, _PACKER, original)


def _importers() -> list[tuple[object, object]]:
    """Every vLLM module that has the packing function under its name: some versions import it at the top of a module."""
    import vllm.model_executor.layers.utils  # noqa: F401 - its home

    return [
        (module, module.__dict__[_PACKER])
        for name, module in list(sys.modules.items())
        if name.startswith("vllm.") and _PACKER in getattr(module, "__dict__", ())
    ]


def _keep_weight(layer: torch.nn.Module, remove_weight: bool) -> None:
    """In the place of vLLM's function: the layer multiplies with the weight as it is."""
    if layer.weight.ndim == 3 and layer.weight.size(1) == 1:
        raise UnsupportedLayer(
            "ipc_cache: causal convolutions (Mamba and hybrid models) are repacked in place on the CPU and "
            "cannot be shared there; use --load-format auto"
        )
    if layer.weight.ndim == 2 or layer.weight.is_meta:
        layer.cpu_linear = torch.nn.functional.linear
