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
from .structure import INTERNAL

# Code, and what leads out of the model.
_OPAQUE = (type, FunctionType, BuiltinFunctionType, ModuleType, torch.dtype, torch.device)
# What most attributes are: not worth a step.
_SCALARS = frozenset(
    {type(None), bool, int, float, complex, str, bytes, FunctionType, BuiltinFunctionType, torch.dtype}
)
_DICTS = frozenset({dict, OrderedDict})
_CONTAINERS = _DICTS | {list, tuple, set, frozenset}
# Where a module has what is registered with it, which is found under its own name.
_REGISTERED = frozenset({"_parameters", "_buffers", "_modules"})

# How something was reached: the step before, the form of the name behind it, the name, the value. A path is put together
# only when it is asked for: there are thousands of steps, and hardly ever a path to tell.
_Step = tuple[Any, str, Any, Any]


def _path(step: _Step) -> str:
    parts = []
    before: _Step | None = step
    while before is not None:  # as many as somebody's chain of objects is long
        before, form, name, _ = before
        parts.append(form.format(name))
    path = "".join(reversed(parts))
    return path if parts[-1] else path.removeprefix(".")  # the module itself has no name


def _worth(entry: Any) -> bool:
    kind = type(entry)
    return kind not in _SCALARS and (kind not in _CONTAINERS or bool(entry)) and not isinstance(entry, _OPAQUE)


def _attributes(step: _Step, value: Any) -> list[_Step]:
    """In __dict__ and in slots; hooks and what else torch keeps there last, since names that lead through them say less."""
    skipped = _REGISTERED if isinstance(value, nn.Module) else ()
    found: list[_Step] = [
        (step, ".{}", name, entry)
        for name, entry in list(getattr(value, "__dict__", {}).items())
        if name not in skipped and _worth(entry)
    ]
    found.sort(key=lambda made: made[2] in INTERNAL)
    for name in () if isinstance(value, torch.Tensor) else getattr(type(value), "__slots__", ()):
        if isinstance(name, str) and hasattr(value, name) and _worth(getattr(value, name)):
            found.append((step, ".{}", name, getattr(value, name)))
    return found


def _children(step: _Step) -> list[_Step]:
    """What is worth a step from here."""
    value = step[3]
    kind = type(value)
    if isinstance(value, nn.Module):
        tables = (value._parameters, value._buffers, value._modules)
        registered = [item for table in tables if table for item in table.items() if item[1] is not None]
        return [(step, ".{}", name, entry) for name, entry in registered] + _attributes(step, value)
    found = [] if kind in _CONTAINERS else _attributes(step, value)
    # Mapping asks all of its subclasses about a class that it sees for the first time; a proxy's class is another's.
    if kind in _DICTS or (hasattr(value.__class__, "items") and isinstance(value, Mapping)):
        found += [(step, "[{!r}]", key, entry) for key, entry in list(value.items()) if _worth(entry)]
    elif isinstance(value, (list, tuple, set, frozenset)):
        found += [(step, "[{}]", i, entry) for i, entry in enumerate(list(value)) if _worth(entry)]
    elif isinstance(value, MethodType):
        found.append((step, ".{}", "__self__", value.__self__))
    elif isinstance(value, partial):
        found += [(step, ".{}", "args", value.args), (step, ".{}", "keywords", value.keywords)]
    return found


def find_meta(module: nn.Module, extra: Iterable[tuple[str, Any]] = ()) -> list[str]:
    """The paths of all tensors on `meta` that can be reached: through modules, attributes of any object, containers,
    bound methods and partial functions. extra: further roots, by name (caches outside of the module)."""
    found: list[str] = []
    seen: dict[int, Any] = {}  # keeps what it has seen alive: an id is unique only as long
    roots = [("", module), *(root for root in extra if _worth(root[1]))]
    pending: list[_Step] = [(None, "{}", name, value) for name, value in reversed(roots)]
    with torch._C.DisableTorchFunctionSubclass():  # engines' parameters look at every access to an attribute of theirs
        while pending:
            step = pending.pop()
            value = step[3]
            if id(value) in seen:
                continue
            seen[id(value)] = value
            if isinstance(value, torch.Tensor):
                if value.is_meta:
                    found.append(_path(step))
                if not value.__dict__:
                    continue
            pending += reversed(_children(step))
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
