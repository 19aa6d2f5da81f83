"""Is anything on `meta` reachable from a module? What is found would be uninitialised memory, or a crash, later."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from .. import errors
from .structure import INTERNAL, join

# Code, and what leads out of the model.
_OPAQUE = (type, FunctionType, BuiltinFunctionType, ModuleType, torch.dtype, torch.device)
# What most attributes are: not worth a step. A module has two dozen containers, nearly all of them empty.
_SCALARS = frozenset(
    {type(None), bool, int, float, complex, str, bytes, FunctionType, BuiltinFunctionType, torch.dtype}
)
_CONTAINERS = frozenset({dict, OrderedDict, list, tuple, set, frozenset})
_HOOKS = sorted(INTERNAL - {"training", "_parameters", "_buffers", "_modules"})  # and what else torch keeps in a module


def _worth(entry: Any) -> bool:
    kind = type(entry)
    return kind not in _SCALARS and (kind not in _CONTAINERS or bool(entry)) and not isinstance(entry, _OPAQUE)


def _attributes(path: str, value: Any) -> list[tuple[str, Any]]:
    """By name: those in __dict__ and in slots."""
    found = [(join(path, n), entry) for n, entry in list(getattr(value, "__dict__", {}).items()) if _worth(entry)]
    for name in () if isinstance(value, torch.Tensor) else getattr(type(value), "__slots__", ()):
        if isinstance(name, str) and hasattr(value, name) and _worth(getattr(value, name)):
            found.append((join(path, name), getattr(value, name)))
    return found


def _of_module(path: str, module: nn.Module) -> list[tuple[str, Any]]:
    """What _attributes() would give, and what is registered under its own name. Most steps are taken here: the two dozen
    attributes that torch gives every module are scalars, or containers that are nearly always empty."""
    begin = f"{path}." if path else ""
    found = [
        (begin + name, entry)
        for registered in (module._parameters, module._buffers, module._modules)
        if registered
        for name, entry in registered.items()
        if entry is not None
    ]
    attributes = module.__dict__
    names = [name for name in attributes if name not in INTERNAL]
    if any(map(attributes.get, _HOOKS)):
        names += _HOOKS
    found += [(begin + name, attributes[name]) for name in names if _worth(attributes.get(name))]
    return found


def _children(path: str, value: Any) -> list[tuple[str, Any]]:
    """What is worth a step from here, by path."""
    kind = type(value)
    if isinstance(value, nn.Module):
        return _of_module(path, value)
    found = [] if kind in _CONTAINERS else _attributes(path, value)
    if isinstance(value, Mapping):
        found += [(f"{path}[{key!r}]", entry) for key, entry in list(value.items()) if _worth(entry)]
    elif isinstance(value, (list, tuple, set, frozenset)):
        found += [(f"{path}[{i}]", entry) for i, entry in enumerate(list(value)) if _worth(entry)]
    elif isinstance(value, MethodType):
        found.append((f"{path}.__self__", value.__self__))
    elif isinstance(value, partial):
        found += [(f"{path}.args", value.args), (f"{path}.keywords", value.keywords)]
    return found


def find_meta(module: nn.Module, extra: Iterable[tuple[str, Any]] = ()) -> list[str]:
    """The paths of all tensors on `meta` that can be reached: through modules, attributes of any object, containers,
    bound methods and partial functions. extra: further roots, by name (caches outside of the module)."""
    found: list[str] = []
    seen: dict[int, Any] = {}  # keeps what it has seen alive: an id is unique only as long
    pending = [("", module), *(root for root in extra if _worth(root[1]))][::-1]
    with torch._C.DisableTorchFunctionSubclass():  # engines' parameters look at every access to an attribute of theirs
        while pending:
            path, value = pending.pop()
            if id(value) in seen:
                continue
            seen[id(value)] = value
            if isinstance(value, torch.Tensor):
                if value.is_meta:
                    found.append(path)
                if not value.__dict__:
                    continue
            pending += _children(path, value)[::-1]
    return found


def check_no_meta(module: nn.Module, extra: Iterable[tuple[str, Any]] = ()) -> None:
    """Raises MetaLeft with the names of what find_meta() finds."""
    names = find_meta(module, extra)
    if names:
        raise errors.MetaLeft(
            f"not bound, and still on meta: {errors.listed(names)}; the published model does not have them, "
            f"or it is another model",
            names,
        )
