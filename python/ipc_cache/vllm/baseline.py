"""Memory accounting for versions of vLLM that do not ask a loader what is held elsewhere (before 0.32).

Their worker measures the device once before it loads, checks that its share of it is free, and later takes everything that
has gone since from that share. Weights that the broker holds are gone already when it measures, and would be taken for
somebody else's. So that one measurement is corrected, and nothing else: what this engine will bind counts as free in it.
After it the driver may be kept busy for the load, while vLLM goes on.
"""

import functools
import sys

from ipc_cache.vllm import kernels, platform

_MARK = "__ipc_cache__"


def install(formats: tuple[str, ...]) -> None:
    """Makes workers with one of these load formats ask our loader, where vLLM does not do it itself. Idempotent."""
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    if hasattr(BaseModelLoader, "get_external_weight_memory") or platform.is_cpu():
        return
    from vllm.v1.worker import utils

    original = getattr(utils, "request_memory", None)
    if original is None or hasattr(original, _MARK):
        return
    corrected = _corrected(original, formats)
    # The worker's module has taken the function by its name, if it is there already.
    for module in (utils, sys.modules.get("vllm.v1.worker.gpu_worker")):
        if module is not None:
            module.request_memory = corrected


def _corrected(original, formats: tuple[str, ...]):
    from vllm.config import get_current_vllm_config

    @functools.wraps(original)
    def request_memory(init_snapshot, cache_config, *more, **options):
        config = get_current_vllm_config()
        outside, changed = _outside(config, formats)
        if changed:
            init_snapshot.measure()
        correct(init_snapshot, outside)
        requested = original(init_snapshot, cache_config, *more, **options)
        if outside and getattr(config.model_config.hf_text_config, "rope_parameters", None):
            kernels.load(platform.target_device(config), config.model_config.dtype)
        return requested

    setattr(request_memory, _MARK, True)
    return request_memory


def correct(snapshot, outside: int) -> None:
    """Counts `outside` bytes as free in a MemorySnapshot."""
    for name, sign in (("free_memory", 1), ("cuda_memory", -1), ("non_torch_memory", -1)):
        if hasattr(snapshot, name):
            setattr(snapshot, name, getattr(snapshot, name) + sign * outside)


def _outside(config, formats: tuple[str, ...]) -> tuple[int, bool]:
    """What our loader says; and whether the device may have changed while it was asked: it may have waited for a publisher,
    or evicted models, and what was measured before holds no more."""
    from vllm.model_executor.model_loader import get_model_loader

    if config.load_config.load_format not in formats:
        return 0, False
    loader = get_model_loader(config.load_config)
    return loader.get_external_weight_memory(config), loader.options.wait > 0 or loader.options.make_room
