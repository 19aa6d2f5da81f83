"""Kernels that a model's constructor calls first, loaded while vLLM makes its runner.

The driver loads a kernel when it is called first. For those of a rotary embedding's table that takes 60 to 100 ms, for
which torch holds no Python lock: so a thread calls them, in a worker that has measured its device and will attach. From
vLLM 0.32 on the worker asks our loader before it measures, and nobody afterwards: there the constructor loads them, as
ever. IPC_CACHE_PREFETCH=0: everywhere.
"""

import threading
from contextlib import suppress

import torch

from ipc_cache.vllm import startup

_thread: threading.Thread | None = None


def load(device: torch.device, dtype: torch.dtype) -> None:
    """Starts the thread; wait() for it. For a model with such an embedding, and when the device has been measured: what it
    takes there, the model's constructor would take."""
    global _thread

    def call() -> None:
        with torch.cuda.device(device):  # it is each thread's own
            rotary(device, dtype)

    if startup.on(startup.PREFETCH) and device.type == "cuda":
        thread = threading.Thread(target=startup.quietly, args=([call],), name="ipc-cache-kernels", daemon=True)
        with suppress(RuntimeError):  # no more threads
            thread.start()
            _thread = thread


def wait() -> None:
    """Whoever builds a model has nobody beside him on the device."""
    global _thread
    if _thread is not None:
        _thread.join()
        _thread = None


def rotary(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """A table of cosines and sines, in vLLM's steps and with rows of a usual length, by which torch chooses kernels."""
    frequencies = 1.0 / (10000.0 ** (torch.arange(0, 128, 2, dtype=torch.float, device=device) / 128))
    angles = torch.einsum("i,j -> ij", torch.arange(64, dtype=torch.float, device=device), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype)
