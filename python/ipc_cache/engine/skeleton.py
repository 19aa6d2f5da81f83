"""skeleton(): an engine's own constructor, with parameters on `meta` and everything that it computes real."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# The factories whose result nobody may read before it is written: what parameters are made by.
_UNINITIALISED = frozenset({torch.empty, torch.empty_strided})


class _Skeleton(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func in _UNINITIALISED and "out" not in kwargs:
            kwargs = {**kwargs, "device": "meta"}
            kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


@contextlib.contextmanager
def skeleton(device: torch.device | str = "cpu") -> Iterator[None]:
    """Within it torch.empty and torch.empty_strided make tensors on `meta`, whatever device is asked for, and all else
    is made on `device`: buffers that a constructor computes are as they should be.

    A buffer that is allocated by torch.empty and filled afterwards is on `meta` too: find_meta() finds it.
    """
    with torch.device(device), _Skeleton():
        yield
