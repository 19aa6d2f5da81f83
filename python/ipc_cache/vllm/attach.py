"""A model whose weights are shared: skeleton, bind, post-process, check; the same order on every platform.

1. Skeleton: vLLM builds the model; uninitialised tensors (the parameters) stay on `meta`, everything that its constructors
   compute (rotary tables, masks) is real, since such buffers depend on flags that may differ from the publisher's.
2. Bind: every parameter becomes a view of the shared segments and keeps its class and attributes.
3. Post-process as vLLM does after a load, told that the weights are final: it rebuilds kernels and host state around them,
   or we do (rebuild.py).
4. Check: nothing on `meta` may be reachable. Uninitialised memory is never made.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from ipc_cache import engine
from ipc_cache.manifest import HIDDEN, PARAMETER
from ipc_cache.vllm import kernels, platform, rebuild, refuse, reload, startup
from ipc_cache.vllm.report import Report

# What is no parameter and not larger than this is copied: engines write such tensors (scales of the cache, counters).
_SMALL_BYTES = 1 << 20
# Multi-head latent attention recomputes these into registered parameters when post-processing runs again.
_REWRITTEN = (".W_UV", ".W_UK_T", ".W_UK", ".W_K", ".W_V", ".W_K_scale", ".W_V_scale")


def build(vllm_config, model_config, prefix: str, weights, report: Report) -> torch.nn.Module:
    """The model around `weights` (an ipc_cache.Weights), ready to run. Fills the report's phases and sizes."""
    target = platform.target_device(vllm_config)
    _check_device(weights, target)
    with startup.collector_paused(), _default_dtype(model_config.dtype):
        reloads = nullcontext() if weights.private else reload.denied()
        with report.phase("skeleton"):
            kernels.wait()
            with reloads, engine.skeleton(target):
                model = _initialize(vllm_config, model_config, prefix)
        refuse.check_methods(model)
        with report.phase("bind"):
            bound = engine.bind(model, weights, private=() if weights.private else _copies(weights))
        with report.phase("post-process"), platform.shareable_kernels(), _ties_settled(model_config), _final_weights():
            _post_process(model, model_config, target)
        with report.phase("check"):
            refuse.check_kernels(model)
            engine.check_no_meta(model)
    report.tensors = len(weights.manifest)
    report.shared, report.private = bound.shared_bytes, bound.copied_bytes
    if weights.private:
        report.shared, report.private = 0, bound.shared_bytes + bound.copied_bytes
    return model.eval()


def _check_device(weights, target: torch.device) -> None:
    if weights.nbytes and weights.device != target:
        raise refuse.Refused(
            f"ipc_cache: the model's segments are on {weights.device}, and this rank runs on {target}; order "
            "CUDA_VISIBLE_DEVICES as when it was published"
        )


def _initialize(vllm_config, model_config, prefix: str) -> torch.nn.Module:
    from vllm.model_executor.model_loader.utils import initialize_model

    return initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)


def _copies(weights) -> set[str]:
    """The tensors that this engine gets as writable copies of its own."""
    table = zip(weights.manifest.names, weights.manifest.flags, weights.manifest.sizes)
    return {
        name
        for name, flags, nbytes in table
        if not name.startswith(HIDDEN)
        and ((nbytes <= _SMALL_BYTES and not flags & PARAMETER) or name.endswith(_REWRITTEN))
    }


def _post_process(model: torch.nn.Module, model_config, target: torch.device) -> None:
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    with rebuild.steps(model):
        process_weights_after_loading(model, model_config, target)


def _final_weights():
    """From vLLM 0.30 post-processing can be told; before, only methods that do not touch weights got this far."""
    from vllm.model_executor import utils

    return getattr(utils, "weights_already_processed", nullcontext)()


@contextmanager
def _ties_settled(model_config) -> Iterator[None]:
    """Whether an lm_head of the checkpoint is the embedding again was found out by the publisher; the alias is bound, and
    comparing two matrices on the host would be the slowest part of an attach."""
    name = "word_embeddings_untied_by_checkpoint"
    before = getattr(model_config, name, None)
    if before is not None:
        setattr(model_config, name, False)
    try:
        yield
    finally:
        if before is not None:
            setattr(model_config, name, before)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """torch's default type while a model is built; vLLM has moved its own helper between versions."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
