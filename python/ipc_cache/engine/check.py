"""Is anything on `meta` reachable from a module? What is found would be uninitialised memory, or a crash, later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from .. import errors
from .structure import join

MAX_NAMES = 20  # in a message

# Code, and what leads out of the model.
_OPAQUE = (type, FunctionType, BuiltinFunctionType, ModuleType, str, bytes, int, float, complex, torch.dtype)


def _children(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, nn.Module):
        for kind in (value._parameters, value._buffers, value._modules):
            yield from ((join(path, name), entry) for name, entry in kind.items())
    if isinstance(value, torch.Tensor) or hasattr(value, "__dict__"):
        for name, entry in list(getattr(value, "__dict__", {}).items()):
            if name not in ("_parameters", "_buffers", "_modules"):
                yield join(path, name), entry
    for name in getattr(type(value), "__slots__", ()) if not isinstance(value, torch.Tensor) else ():
        if isinstance(name, str) and hasattr(value, name):
            yield join(path, name), getattr(value, name)
    if isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", entry) for key, entry in list(value.items()))
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"{path}[{i}]", entry) for i, entry in enumerate(list(value)))
    if isinstance(value, MethodType):
        yield f"{path}.__self__", value.__self__
    if hasattr(value, "func") and hasattr(value, "args") and hasattr(value, "keywords"):  # functools.partial
        yield f"{path}.args", value.args
        yield f"{path}.keywords", value.keywords


def find_meta(module: nn.Module, extra: Iterable[tuple[str, Any]] = ()) -> list[str]:
    """The paths of all tensors on `meta` that can be reached: through modules, attributes of any object, containers,
    bound methods and partial functions. extra: further roots, by name (caches outside of the module)."""
    found: list[str] = []
    seen: dict[int, Any] = {}  # keeps what it has seen alive: an id is unique only as long
    pending: list[tuple[str, Any]] = [*reversed([("", module), *extra])]
    while pending:
        path, value = pending.pop()
        if value is None or (isinstance(value, _OPAQUE) and not isinstance(value, nn.Module)) or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, torch.Tensor) and value.is_meta:
            found.append(path)
        pending.extend(reversed(list(_children(path, value))))
    return found


def check_no_meta(module: nn.Module, extra: Iterable[tuple[str, Any]] = ()) -> None:
    """Raises MetaLeft with the names of what find_meta() finds."""
    names = find_meta(module, extra)
    if names:
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        raise errors.MetaLeft(
            f"not bound, and still on meta: {', '.join(names[:MAX_NAMES])}{more}; the published model does not have them, "
            f"or it is another model",
            names,
        )
