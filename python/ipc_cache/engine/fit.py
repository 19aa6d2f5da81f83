"""Does a published model fit a skeleton? Asked before anything is bound.

Mismatch: it is another model. Invalid: its state would write where no export() writes, over what torch or the class of a
module keeps under that name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from .. import errors
from ..manifest import BUFFER, PARAMETER
from ..weights import Weights
from .state import State, invalid
from .structure import INTERNAL


def check(
    module: nn.Module,
    owners: Mapping[str, nn.Module],
    weights: Weights,
    flags: Mapping[str, int],
    state: State,
    ignore: Callable[[str], bool] | None,
) -> None:
    """owners: the skeleton's modules by path; flags: of the model's tensors, by name; ignore: as bind() has it."""
    _check_modules(module, owners, weights, flags, state)
    for path, attribute in _places(flags, state):
        reason = _forbidden(owners[path], attribute) if path in owners else None
        if reason:
            raise invalid(weights.manifest.name, f"{attribute!r} of module {path or '(the root)'} {reason}")
    for name, attributes in state.flags.items():
        _check_flags(owners, weights.manifest.name, name, attributes)
    _check_shapes(owners, weights, flags, state, ignore)


def _check_modules(
    module: nn.Module, owners: Mapping[str, nn.Module], weights: Weights, flags: Mapping[str, int], state: State
) -> None:
    paths = {name.rpartition(".")[0] for name, flag in flags.items() if flag & (PARAMETER | BUFFER)}
    paths |= set(state.plain) | set(state.scalars)
    missing = sorted(path for path in paths if path not in owners)
    if missing:
        shown = errors.listed(missing)
        raise errors.Mismatch(
            f"{weights.manifest.name} is another model: {type(module).__name__} has no {shown}", 0, "modules",
            f"{len(owners)} modules", shown,
        )  # fmt: skip


def _places(flags: Mapping[str, int], state: State) -> Iterator[tuple[str, str]]:
    """(module path, attribute) of all that is written or removed."""
    registered = [name for name, flag in flags.items() if flag & (PARAMETER | BUFFER)]
    for name in (*registered, *state.deleted, *state.none):
        if "[" not in name:  # else a container holds it, which is written as a whole
            path, _, attribute = name.rpartition(".")
            yield path, attribute
    for by_path in (state.plain, state.scalars):
        for path, attributes in by_path.items():
            for attribute in attributes:
                yield path, attribute


def _forbidden(owner: nn.Module, attribute: str) -> str | None:
    """Why nothing may be written under this name, if so."""
    if attribute in owner._parameters:  # nearly all
        return None
    if not attribute or attribute in INTERNAL or attribute.startswith("__"):
        return "is Python's or torch's own"
    if attribute in owner._modules:
        return "is a module"
    if attribute in owner._buffers or attribute in owner.__dict__:
        return None
    of_class = getattr(type(owner), attribute, None)
    if callable(of_class) or isinstance(of_class, property) or hasattr(nn.Module, attribute):
        return f"belongs to the class {type(owner).__name__}"
    return None


def _check_flags(owners: Mapping[str, nn.Module], model: str, name: str, attributes: Mapping[str, Any]) -> None:
    path, _, last = name.rpartition(".")
    old = owners[path]._parameters.get(last) if path in owners else None
    for attribute in attributes:
        if old is not None and attribute in old.__dict__:
            continue
        if not attribute or attribute.startswith("__") or hasattr(torch.Tensor, attribute):
            raise invalid(model, f"flag {attribute!r} of tensor {name} is Python's or torch's own")


def _check_shapes(
    owners: Mapping[str, nn.Module],
    weights: Weights,
    flags: Mapping[str, int],
    state: State,
    ignore: Callable[[str], bool] | None,
) -> None:
    """A parameter that loading and post-processing left in its shape has it in every skeleton of the model. Of those that
    were reshaped, and of buffers, which may be as large as the caller's limits, nothing can be said."""
    if state.reshaped is None:
        return
    views = weights._views()
    for name, flag in flags.items():
        if not flag & PARAMETER or name in state.reshaped or name not in views:
            continue
        path, _, attribute = name.rpartition(".")
        old = owners[path]._parameters.get(attribute)
        if old is None or is_lazy(old) or old.shape == views[name].shape or (ignore is not None and ignore(name)):
            continue
        expected, got = (str(list(tensor.shape)) for tensor in (old, views[name]))
        raise errors.Mismatch(
            f"{weights.manifest.name} is another model: {name} is {got} in it, and {expected} in the skeleton", 0,
            f"shape of {name}", expected, got,
        )  # fmt: skip
