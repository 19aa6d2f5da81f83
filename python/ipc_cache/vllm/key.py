"""What decides the bytes of one rank's weights, as the fields of a broker key.

In the key is what changes them: the model, the layout of ranks, data types and quantisation, the versions and back ends
whose post-processing laid them out, and the machine. Not in it is what sweeps change: batch and sequence limits, block
size, memory utilisation, prefix caching, eager or graphs. Compute the key before loading: post-processing may change the
configuration that it reads.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from ipc_cache import engine
from ipc_cache.vllm import platform, refuse, sources

# Variables of vLLM's that choose kernels, and with them layouts.
_DECIDING = (
    "MOE",
    "FP8",
    "FP4",
    "MARLIN",
    "GEMM",
    "PREPACK",
    "PADDING",
    "QUANT",
    "WEIGHT",
    "KERNEL",
    "FLASHINFER",
    "AITER",
)


def role(vllm_config, model_config) -> str:
    """ "draft" for the model of speculative decoding, else "target"."""
    speculative = vllm_config.speculative_config
    draft = getattr(speculative, "draft_model_config", None)
    return "draft" if draft is not None and model_config is draft else "target"


def fields(vllm_config, model_config, source: sources.Source) -> Mapping[str, str]:
    """The key of the model that this process is about to load; needs vLLM's process groups."""
    import vllm

    return engine.build_key(
        {
            "layout": "engine",
            "engine": "vllm",
            "engine_version": vllm.__version__,
            "torch": torch.__version__,
            "model": source.identity,
            "role": role(vllm_config, model_config),
            "capability": platform.capability(),
            "environment": _environment(),
            **_model_fields(model_config, source),
            **_parallel_fields(vllm_config, model_config),
            **_backend_fields(vllm_config, model_config),
        }
    )


def _model_fields(config, source: sources.Source) -> dict[str, object]:
    quantized = config.quantization is not None
    return {
        "architecture": list(getattr(config.hf_config, "architectures", None) or []),
        "config": _config_digest(config, source),
        "config_path": getattr(config, "hf_config_path", None),
        "config_format": _unless_auto(getattr(config, "config_format", "auto")),
        "code": _code_digest(source) if getattr(config, "trust_remote_code", False) else None,
        "code_revision": getattr(config, "code_revision", None),
        "dtype": str(config.dtype).removeprefix("torch."),
        "quantization": config.quantization,
        "quantization_config": _plain(getattr(config.hf_config, "quantization_config", None)) if quantized else None,
        "quantization_options": _plain(getattr(config, "quantization_config", None)) if quantized else None,
        "hf_overrides": _plain(config.hf_overrides) or None,
        "model_impl": str(getattr(config, "model_impl", "auto")),
        # Pooling models are other classes over the same checkpoint, without a language model's head.
        "runner": str(getattr(config, "runner_type", "")),
        "convert": str(getattr(config, "convert_type", "")),
    }


def _config_digest(config, source: sources.Source) -> str | None:
    """Of config.json as it is on disk: the object made of it is changed by flags that do not touch the weights."""
    path = Path(getattr(config, "hf_config_path", None) or source.folder) / "config.json"
    return engine.file_digest(path) if path.is_file() else None


def _unless_auto(value: object) -> str | None:
    text = str(getattr(value, "value", value))
    return None if text == "auto" else text


def _code_digest(source: sources.Source) -> str | None:
    """Of the Python files beside the checkpoint, which build the model where they are trusted."""
    files = sorted(source.folder.glob("*.py"))
    return engine.digest([(file.name, engine.file_digest(file)) for file in files]) if files else None


def _parallel_fields(vllm_config, model_config) -> dict[str, object]:
    from vllm.distributed import parallel_state

    config = vllm_config.parallel_config
    tensor, pipeline = parallel_state.get_tp_group(), parallel_state.get_pp_group()
    experts = bool(getattr(config, "enable_expert_parallel", False))
    balance = getattr(config, "eplb_config", None)
    return {
        "tensor_parallel_size": tensor.world_size,
        "tensor_parallel_rank": tensor.rank_in_group,
        "pipeline_parallel_size": pipeline.world_size,
        "pipeline_parallel_rank": pipeline.rank_in_group,
        "data_parallel_size": config.data_parallel_size,
        "data_parallel_rank": config.data_parallel_rank,
        "expert_parallel": experts,
        "expert_placement": str(getattr(config, "expert_placement_strategy", "linear")) if experts else None,
        "redundant_experts": getattr(balance, "num_redundant_experts", 0) if experts else None,
    }


def _backend_fields(vllm_config, model_config) -> dict[str, object]:
    attention = getattr(vllm_config, "attention_config", None)
    kernel = getattr(vllm_config, "kernel_config", None)
    cache = vllm_config.cache_config
    return {
        "attention_backend": _name(getattr(attention, "backend", None))
        or os.environ.get("VLLM_ATTENTION_BACKEND", "auto"),
        "moe_backend": str(getattr(kernel, "moe_backend", "auto")),
        "linear_backend": str(getattr(kernel, "linear_backend", "auto")),
        # Only quantised models carry scales of the cache.
        "kv_cache_dtype": str(cache.cache_dtype) if model_config.quantization is not None else None,
    }


def _environment() -> str | None:
    chosen = [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith("VLLM_") and "SAMPLER" not in name and any(word in name for word in _DECIDING)
    ]
    return " ".join(chosen) or None


def _name(value: object) -> str | None:
    return getattr(value, "name", None) or (str(value) if value is not None else None)


def _plain(value: object) -> object:
    """Something that engine.build_key() can write down."""
    if callable(value) and not isinstance(value, type):
        return _function(value)
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def _function(value: object) -> object:
    """vLLM's own go by their name, since its version is in the key, and by what they were made around. What a user's does
    cannot be told: two programs may each have another one of the same name."""
    name = f"{getattr(value, '__module__', '?')}.{getattr(value, '__qualname__', '?')}"
    if not name.startswith("vllm."):
        raise refuse.Refused(
            f"ipc_cache: hf_overrides or a quantisation option is the function {name}, and what it does cannot be "
            "compared; say it as a mapping"
        )
    around = [_plain(cell.cell_contents) for cell in getattr(value, "__closure__", None) or ()]
    return [name, *around] if around else name
