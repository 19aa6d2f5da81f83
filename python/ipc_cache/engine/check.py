"""Is anything on `meta` reachable from a module? What is found would be uninitialised memory, or a crash, later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from .. import errors
from .structure import join

MAX_NAMES = 20  # in a message

# Code, and what leads out of the model.
_OPAQUE = (type, FunctionType, BuiltinFunctionType, ModuleType, str, bytes, int, float, complex, torch.dtype)
# The most frequent of what has nothing inside, by exact type.
_ATOMS = frozenset({type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size, FunctionType})
_CONTAINERS = frozenset({dict, list, tuple, set, frozenset})
_NOTHING: dict[str, Any] = {}
_PARTIAL = ("func", "args", "keywords")  # functools.partial, and what is made like it


# A child: how it hangs on its parent (an attribute, or an item), under which name, and what it is.
Child = tuple[bool, Any, Any]


def _of_container(value: Any) -> list[Child]:
    if isinstance(value, Mapping):
        return [(False, key, entry) for key, entry in list(value.items())]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(False, i, entry) for i, entry in enumerate(list(value))]
    return []


def _children(value: Any) -> list[Child]:
    if type(value) in _CONTAINERS:  # most of all there is
        return _of_container(value)
    found: list[Child] = []
    if isinstance(value, nn.Module):
        for kind in (value._parameters, value._buffers, value._modules):
            found += [(True, name, entry) for name, entry in kind.items()]
    is_tensor = isinstance(value, torch.Tensor)
    for name, entry in list(getattr(value, "__dict__", _NOTHING).items()):
        if type(entry) not in _ATOMS and name not in ("_parameters", "_buffers", "_modules"):
            found.append((True, name, entry))
    for name in () if is_tensor else getattr(type(value), "__slots__", ()):
        if isinstance(name, str) and hasattr(value, name):
            found.append((True, name, getattr(value, name)))
    found += _of_container(value)
    if isinstance(value, MethodType):
        found.append((True, "__self__", value.__self__))
    elif not isinstance(value, (torch.Tensor, nn.Module)) and all(hasattr(value, name) for name in _PARTIAL):
        found += [(True, "args", value.args), (True, "keywords", value.keywords)]
    return found


def _path(places: list[tuple[int, bool, Any]], at: int) -> str:
    """The names from a root down to a place."""
    names = []
    while at >= 0:
        at, attribute, name = places[at]
        names.append((attribute, name))
    path = ""
    for attribute, name in reversed(names):
        path = join(path, name) if attribute else f"{path}[{name!r}]"
    return path


def find_meta(module: nn.Module, extra: Iterable[tuple[str, Any]] = ()) -> list[str]:
    """The paths of all tensors on `meta` that can be reached: through modules, attributes of any object, containers,
    bound methods and partial functions. extra: further roots, by name (caches outside of the module)."""
    found: list[str] = []
    seen: dict[int, Any] = {}  # keeps what it has seen alive: an id is unique only as long
    # Of everything looked at: its parent's place, and how it hangs there. A path is only put together when it is needed.
    places: list[tuple[int, bool, Any]] = []
    pending = [(-1, True, name, value) for name, value in reversed([("", module), *extra])]
    while pending:
        parent, attribute, name, value = pending.pop()
        if id(value) in seen or (isinstance(value, _OPAQUE) and not isinstance(value, nn.Module)):
            continue
        seen[id(value)] = value
        place = len(places)
        places.append((parent, attribute, name))
        if isinstance(value, torch.Tensor) and value.is_meta:
            found.append(_path(places, place))
        pending += [
            (place, *child)
            for child in reversed(_children(value))
            if type(child[2]) not in _ATOMS and id(child[2]) not in seen
        ]
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
