"""Is anything on `meta` reachable from a module? What is found would be uninitialised memory, or a crash, later."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from .. import errors
from .structure import join

MAX_NAMES = 20  # in a message

# Code, and what leads out of the model.
_OPAQUE = (type, FunctionType, BuiltinFunctionType, ModuleType, torch.dtype, torch.device)
# What most attributes are: not worth a step. A module has two dozen containers, nearly all of them empty.
_SCALARS = frozenset(
    {type(None), bool, int, float, complex, str, bytes, FunctionType, BuiltinFunctionType, torch.dtype}
)
_CONTAINERS = frozenset({dict, OrderedDict, list, tuple, set, frozenset})
_REGISTERED = ("_parameters", "_buffers", "_modules")


def _worth(entry: Any) -> bool:
    kind = type(entry)
    return not (kind in _SCALARS or (kind in _CONTAINERS and not entry))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """By name: those in __dict__ and in slots."""
    for name, entry in list(getattr(value, "__dict__", {}).items()):
        if _worth(entry):
            yield name, entry
    if not isinstance(value, (torch.Tensor, nn.Module)):
        for name in getattr(type(value), "__slots__", ()):
            if isinstance(name, str) and hasattr(value, name):
                yield name, getattr(value, name)


def _children(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if isinstance(value, nn.Module):
        for registered in (value._parameters, value._buffers, value._modules):
            yield from ((join(path, name), entry) for name, entry in registered.items())
        yield from ((join(path, name), entry) for name, entry in _attributes(value) if name not in _REGISTERED)
        return
    if kind not in _CONTAINERS:
        yield from ((join(path, name), entry) for name, entry in _attributes(value))
    if isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", entry) for key, entry in list(value.items()) if _worth(entry))
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"{path}[{i}]", entry) for i, entry in enumerate(list(value)) if _worth(entry))
    elif isinstance(value, MethodType):
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, partial):
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
        if not _worth(value) or id(value) in seen or isinstance(value, _OPAQUE):
            continue
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            if value.is_meta:
                found.append(path)
            if not value.__dict__:
                continue
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
