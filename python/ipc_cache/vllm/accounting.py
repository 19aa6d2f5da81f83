"""What vLLM's worker is told about memory that the broker holds, before it measures the device.

The worker asks for it once, takes its snapshot and then loads; where it does not ask, baseline.py does. So the decision,
attach or not, is made in that call: it waits, takes the lease, and what it answered is what the load binds. Writable copies
are this process's own memory and count nothing; so does a model that will be loaded, or published and attached, after the
snapshot. The CPU worker does not ask.
"""

import logging
import time
from collections.abc import Callable

import torch

import ipc_cache
from ipc_cache.vllm import key, platform, refuse
from ipc_cache.vllm.options import Options
from ipc_cache.vllm.report import Report

logger = logging.getLogger("vllm.ipc_cache")

_QUIET_SECONDS, _SETTLING_SECONDS = 1.0, 10.0

# Decisions of the memory query, until the load takes them: by role and model.
_decided: dict[tuple[str, str], object] = {}


def decide(loader, vllm_config) -> int:
    """Decides for the target and, if it comes through this loader, the draft; bytes that both hold outside of us."""
    refuse.check_config(vllm_config, loader.options.private)
    _decided.clear()
    outside, began, waited = 0, time.time_ns(), False
    for model_config in _models(vllm_config):
        role = key.role(vllm_config, model_config)
        decision = loader.look(vllm_config, model_config, Report("attached", model_config.model, role, platform.rank()))
        _decided[role, model_config.model] = decision
        if decision.weights is not None:
            outside += decision.weights.nbytes if not loader.options.private else 0
            waited |= decision.weights.manifest.created_ns > began
    target = platform.target_device(vllm_config)
    if target.type != "cpu":

        def free() -> int:
            return torch.cuda.mem_get_info(target)[0]

        if waited:
            settle(free)
        total = torch.cuda.mem_get_info(target)[1]
        needed = int(total * vllm_config.cache_config.gpu_memory_utilization) - outside
        make_room(needed, free, platform.device_name(target), loader.options)
    return outside


def settle(free: Callable[[], int], sleep: Callable[[float], None] = time.sleep) -> None:
    """Returns when `free()` has not changed for a second, or ten have passed. Who publishes holds more than the weights,
    and gives it back after they are resident: measured too early, that would be taken for this engine's own."""
    last, quiet, left = free(), 0.0, _SETTLING_SECONDS
    while quiet < _QUIET_SECONDS and left > 0:
        sleep(0.05)
        now = free()
        quiet, left = (quiet + 0.05 if now == last else 0.0), left - 0.05
        last = now


def _models(vllm_config) -> list:
    speculative = vllm_config.speculative_config
    draft = getattr(speculative, "draft_model_config", None)
    own_loader = getattr(speculative, "draft_load_config", None)
    shared = draft is not None and (own_loader is None or own_loader.load_format == vllm_config.load_config.load_format)
    return [vllm_config.model_config, draft] if shared else [vllm_config.model_config]


def take(role: str, model: str):
    """The decision of the memory query, once; None if there was no query."""
    return _decided.pop((role, model), None)


def make_room(needed: int, free: Callable[[], int], device: str, options: Options) -> list[str]:
    """Evicts unleased models of `device`, oldest first, until `free()` reaches `needed` bytes; returns the names of those
    that it evicted. With the option `make_room` off it evicts none, and names all that are in the way."""
    if free() >= needed:
        return []
    unused = _unused(device, options)
    if not options.make_room:
        names = [f"{_display_name(m)} ({m.nbytes} bytes)" for m in unused]
        if names:
            logger.warning(
                "ipc_cache: %s has %d bytes free and vLLM wants %d; models that nobody uses: %s. Evict them with "
                "`ipc-cache evict`, or set make_room", device, free(), needed, ", ".join(names),
            )  # fmt: skip
        return names
    evicted = []
    for model in unused:
        if free() >= needed:
            break
        try:
            ipc_cache.evict(model.key_id, key={"device": model.key["device"]}, dir=options.dir)
        except (ipc_cache.Busy, ipc_cache.NotFound):  # somebody attached or evicted it meanwhile
            continue
        evicted.append(_display_name(model))
        logger.info("ipc_cache: evicted %s to make room on %s", evicted[-1], device)
    return evicted


def _unused(device: str, options: Options) -> list:
    """The models of a device that nobody has a lease on, oldest first."""
    name = ipc_cache.client.device_name(device)
    models = ipc_cache.models(dir=options.dir)
    unused = [m for m in models if m.state == "ready" and not m.leases and m.key.get("device") == name]
    return sorted(unused, key=lambda m: m.created_ns)


def _display_name(model) -> str:
    return model.name or model.key_id[:12]
