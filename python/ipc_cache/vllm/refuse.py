"""What the plugin refuses, by name: configurations before the broker is asked, layers before anything is bound to them.

Shared weights are read-only by page protection: an engine that writes into its weights after the load would die on the
first write. Everything known to do so is refused at start, with the way out. So is a quantisation method that cannot be
rebuilt around weights which are in their final form already.
"""

import torch

from ipc_cache.vllm import platform, rebuild

# On the CPU the others pack weights into opaque objects.
_CPU = rebuild.UNTOUCHED | {"UnquantizedFusedMoEMethod"}

# These promise vLLM that they know final weights, and raise when they see them, unless this is their back end.
_PROMISED = {
    "Mxfp4MoEMethod": ("mxfp4_backend", "FLASHINFER_TRTLLM_MXFP4_MXFP8"),
    "ModelOptNvFp4FusedMoE": ("nvfp4_backend", "FLASHINFER_TRTLLM"),
}


class Refused(RuntimeError):
    """Shared weights are not possible with this configuration; the message names the setting and the way out."""


def check_config(vllm_config, private: bool) -> None:
    """Raises Refused for a setting with which vLLM writes into weights that are shared."""
    if private:
        return
    for setting, is_set, reason in _writers(vllm_config):
        if is_set:
            raise Refused(
                f"ipc_cache: {setting} {reason}, and shared weights are read-only; start without it, or take a "
                "writable copy with --model-loader-extra-config '{\"private\": true}'"
            )


def _writers(config):
    parallel, model = config.parallel_config, config.model_config
    yield "--enable-eplb", getattr(parallel, "enable_eplb", False), "moves experts between ranks while serving"
    yield (
        "--enable-elastic-ep",
        getattr(parallel, "enable_elastic_ep", False),
        "moves experts between ranks while serving",
    )
    yield (
        "--weight-transfer-config",
        getattr(config, "weight_transfer_config", None) is not None,
        "writes new weights into the running engine",
    )
    yield "--enable-sleep-mode", getattr(model, "enable_sleep_mode", False), "frees and rewrites the weights"
    yield "--cpu-offload-gb and --offload-backend", _offloads(config), "moves weights between devices"
    yield "online quantisation", _quantizes_online(config), "quantises the weights while loading them"


def _offloads(config) -> bool:
    offload = getattr(config, "offload_config", None)
    if offload is not None:
        return offload.uva.cpu_offload_gb > 0 or offload.prefetch.offload_group_size > 0
    return getattr(config.cache_config, "cpu_offload_gb", 0) > 0


def _quantizes_online(config) -> bool:
    """A quantisation was asked for that the checkpoint does not have."""
    quantization = config.quant_config
    online = getattr(quantization, "online_quantization_config", None)
    return (
        quantization is not None
        and getattr(config.model_config.hf_config, "quantization_config", None) is None
        and getattr(config.model_config.hf_config, "compression_config", None) is None
    ) or online is not None


def has_rebuild_hook() -> bool:
    """Can this vLLM post-process weights that are final already (from 0.30)?"""
    from vllm.model_executor import utils

    return hasattr(utils, "weights_already_processed")


def check_methods(model: torch.nn.Module) -> None:
    """Raises Refused for a layer whose quantisation method cannot be rebuilt around final weights."""
    for name, layer in rebuild.layers(model):
        if not _rebuilds(layer):
            what = " with ".join(part for part in rebuild.names(layer) if part)
            raise Refused(
                f"ipc_cache: layer {name or '<root>'}: {what} cannot be rebuilt around shared weights "
                f"{_where()}; use --load-format auto for this model"
            )


def check_kernels(model: torch.nn.Module) -> None:
    """Raises Refused for a layer that was laid out for another kernel or back end than vLLM takes here."""
    found = rebuild.mismatch(model)
    if found is not None:
        raise Refused(
            f"ipc_cache: {found}; run both with the same packages, --linear-backend and --moe-backend, or use "
            "--load-format auto"
        )


def _where() -> str:
    import vllm

    if not has_rebuild_hook():
        return "before vLLM 0.30"
    return "on the CPU, where it packs them" if platform.is_cpu() else f"by this plugin with vLLM {vllm.__version__}"


def _rebuilds(layer: torch.nn.Module) -> bool:
    name = type(layer.quant_method).__name__
    if platform.is_cpu():
        return name in _CPU if has_rebuild_hook() else name in rebuild.UNTOUCHED
    if not has_rebuild_hook():  # nothing tells a method that its weights are final
        return name in rebuild.UNTOUCHED
    if rebuild.judges(layer):
        return rebuild.step(layer) is not None
    if _without_locks(layer):
        return False
    attribute, wanted = _PROMISED.get(name, ("", None))
    if wanted is not None and getattr(getattr(layer.quant_method, attribute, None), "name", None) != wanted:
        return False
    return bool(getattr(layer.quant_method, "supports_pre_processed_weights", False))


def _without_locks(layer: torch.nn.Module) -> bool:
    """In vLLM 0.30 Marlin's locks are the layer's, and around final weights nobody makes them anew; since then not."""
    return rebuild.release() == "0.30.0" and "Marlin" in rebuild.names(layer)[2]
