"""What costs an engine's start time beside the weights, and can be had without touching vLLM. Each has a switch.

IPC_CACHE_GC_FREEZE=0: vLLM collects garbage several times while it starts, over everything that its imports have made: of a
start of seven seconds, four. What exists when our loader is registered, or made, lives as long as the process, so it is
taken out of those rounds; and a model is built without a round in between.

IPC_CACHE_PREFETCH=0: in every process Triton hashes all of its own files before its first kernel, and our library is opened
and looked through. A thread does so while vLLM reads its configuration; an engine core that is forked has it all then. See
kernels.py for a worker's.

preload(), for a program that starts engines again and again: what an engine core imports after its fork is imported before.
"""

import gc
import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from ipc_cache.vllm import compiler

FREEZE = "IPC_CACHE_GC_FREEZE"
PREFETCH = "IPC_CACHE_PREFETCH"

_PATIENCE_SECONDS = 10.0  # that a fork waits for Triton's hash

# What a worker imports when it begins, when it asks every attention back end whether it fits, when it is to compile and, in
# the functions of its warm-up, whatever the model. Which of them there are differs between versions; read in 0.26, 0.30
# and 0.32.
_WORKER_MODULES = {
    "cpu": ("vllm.v1.worker.cpu_worker", "vllm.v1.attention.backends.cpu_attn", "vllm.compilation.backends"),
    "cuda": (
        "vllm.v1.worker.gpu_worker",
        "vllm.v1.worker.gpu.model_runner",
        "vllm.v1.worker.gpu_model_runner",
        "vllm.v1.attention.backends.flash_attn",
        "vllm.v1.attention.backends.flashinfer",
        "vllm.v1.attention.backends.triton_attn",
        "vllm.v1.attention.backends.flex_attention",
        "vllm.v1.attention.backends.turboquant_attn",
        "vllm.compilation.backends",
        "vllm.model_executor.kernels.linear.cute_dsl.ll_bf16",
        "vllm.models.deepseek_v4.nvidia.dspark",
        "vllm.model_executor.models.kimi_k25",
        "vllm.models.minimax_m3.nvidia.model",
    ),
}

logger = logging.getLogger("vllm.ipc_cache")


def on(variable: str) -> bool:
    """Is this switch, on by default, not turned off?"""
    return os.environ.get(variable, "1") != "0"


def freeze() -> None:
    """Objects that exist now are not looked at by the garbage collector any more; costs nothing itself. In a process that
    forks, their pages stay shared with the child."""
    if on(FREEZE):
        gc.freeze()


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection while many objects are made that all stay."""
    pause = on(FREEZE) and gc.isenabled()
    if pause:
        gc.disable()
    try:
        yield
    finally:
        if pause:
            gc.enable()


def prefetch() -> threading.Thread | None:
    """Starts the thread. A fork waits until it has ended, but not for ever: on a hanging file system the child is started
    without what it finds out, and does it itself."""
    if not on(PREFETCH):
        return None
    thread = threading.Thread(target=quietly, args=(_inherited(),), name="ipc-cache-prefetch", daemon=True)
    thread.start()
    os.register_at_fork(before=_Joining(thread))
    return thread


def _inherited() -> list[Callable[[], object]]:
    """Functions that remember their result, which a forked child has then."""
    from vllm.platforms import current_platform

    from ipc_cache import _library, tensors

    functions: list[Callable[[], object]] = [_library.library, tensors._fast]
    if current_platform.is_cuda_alike():
        with suppress(ImportError):  # no Triton, or one that works in another way
            from triton.runtime import cache

            functions.append(lambda: cache.triton_key())
    return functions


def preload() -> list[str]:
    """Imports here what every engine core imports after it was forked, and finds out what it would; those that this process
    starts have it then.

    For a process that starts engines one after the other: call it once, before the first, in its main thread and while no
    other thread imports. Touches no device; costs what the first engine would have paid. Returns the modules that this
    version of vLLM has; what cannot be imported the engine will meet again, and says so where it matters.
    """
    from vllm.platforms import current_platform

    imported = []
    with _no_device():
        for name in _WORKER_MODULES.get("cpu" if current_platform.is_cpu() else "cuda", ()):
            try:
                importlib.import_module(name)
            except Exception as error:  # modules for other hardware fail in many ways
                logger.debug("ipc_cache: %s is not preloaded: %s", name, error)
            else:
                imported.append(name)
        quietly([compiler.find_back_ends])
    # Not before: the functions that initialise CUDA have rules, too.
    quietly([compiler.keep_rules])
    if on(PREFETCH):
        quietly(_inherited())
    freeze()
    return imported


@contextmanager
def _no_device() -> Iterator[None]:
    """What would initialise CUDA through torch fails instead: no child of a process that has could use the device. There
    are modules that ask the GPU for its name when they are imported."""

    def fail(*_: object) -> None:
        raise RuntimeError("it wants the device when it is imported")

    places = [(torch.cuda, "_lazy_init"), (torch._C, "_cuda_init")]
    before = [(module, name, getattr(module, name)) for module, name in places if hasattr(module, name)]
    for module, name, _ in before:
        setattr(module, name, fail)
    try:
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


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


def quietly(functions: list[Callable[[], object]]) -> None:
    """Calls them all. What fails here is met again, by who needs it and can say so."""
    for function in functions:
        try:
            function()
        except Exception as error:
            logger.debug("ipc_cache: not found out before it is needed: %s", error)
