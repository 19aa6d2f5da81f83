"""What costs an engine's start time beside the weights, and can be had without touching vLLM. Each has a switch.

IPC_CACHE_GC_FREEZE=0: vLLM collects garbage several times while it starts, over everything that its imports have made: of a
start of seven seconds, four. What exists when our loader is registered, or made, lives as long as the process, so it is
taken out of those rounds; and a model is built without a round in between.

IPC_CACHE_PREFETCH=0: in every process Triton hashes all of its own files before its first kernel. A thread does so while
vLLM reads its configuration; an engine core that is forked has the answer then.
"""

import gc
import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

FREEZE = "IPC_CACHE_GC_FREEZE"
PREFETCH = "IPC_CACHE_PREFETCH"

_PATIENCE_SECONDS = 10.0  # that a fork waits for Triton's hash

# What a worker imports when it begins, runs its first layer or warms up; which of them exist differs between versions.
_WORKER_MODULES = {
    "cpu": ("vllm.v1.worker.cpu_worker", "vllm.v1.attention.backends.cpu_attn"),
    "cuda": (
        "vllm.v1.worker.gpu_worker",
        "vllm.v1.worker.gpu.model_runner",
        "vllm.v1.worker.gpu_model_runner",
        "vllm.v1.attention.backends.flash_attn",
        "vllm.v1.attention.backends.triton_attn",
    ),
}

logger = logging.getLogger("vllm.ipc_cache")


def _on(variable: str) -> bool:
    return os.environ.get(variable, "1") != "0"


def freeze() -> None:
    """Objects that exist now are not looked at by the garbage collector any more; costs nothing itself. In a process that
    forks, their pages stay shared with the child."""
    if _on(FREEZE):
        gc.freeze()


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection while many objects are made that all stay."""
    pause = _on(FREEZE) and gc.isenabled()
    if pause:
        gc.disable()
    try:
        yield
    finally:
        if pause:
            gc.enable()


def prefetch() -> threading.Thread | None:
    """Starts the thread, where there is a GPU and a Triton that works like this. A fork waits until it has ended, but not
    for ever: on a hanging file system the child is started without the answer, and finds it out itself."""
    from vllm.platforms import current_platform

    if not _on(PREFETCH) or not current_platform.is_cuda_alike():
        return None
    try:
        from triton.runtime.cache import triton_key
    except ImportError:
        return None
    thread = threading.Thread(target=_quietly, args=(triton_key,), name="ipc-cache-prefetch", daemon=True)
    thread.start()
    os.register_at_fork(before=_Joining(thread))
    return thread


def preload() -> list[str]:
    """Imports here what every engine core imports after it was forked, so that those which this process starts have it.

    For a process that starts engines one after the other: call it once, before the first, in its main thread and while no
    other thread imports. Touches no device; costs what the first engine would have paid. Returns the modules that this
    version of vLLM has; what cannot be imported the engine will meet again, and says so where it matters.
    """
    from vllm.platforms import current_platform

    imported = []
    for name in _WORKER_MODULES.get("cpu" if current_platform.is_cpu() else "cuda", ()):
        try:
            importlib.import_module(name)
        except Exception as error:  # modules for other hardware fail in many ways
            logger.debug("ipc_cache: %s is not preloaded: %s", name, error)
        else:
            imported.append(name)
    freeze()
    return imported


class _Joining:
    """Waits for a thread, and if that was too long never again."""

    def __init__(self, thread: threading.Thread) -> None:
        self.thread = thread
        self.patience = _PATIENCE_SECONDS

    def __call__(self) -> None:
        self.thread.join(self.patience)
        if self.thread.is_alive() and self.patience:
            logger.info(
                "ipc_cache: Triton's files are not hashed after %s s; the child hashes them itself", self.patience
            )
            self.patience = 0.0


def _quietly(function: Callable[[], object]) -> None:
    # What fails here Triton meets again, and says so where it matters.
    with suppress(Exception):
        function()
