"""Does a published model fit a skeleton? Asked before anything is bound.

Mismatch: it is another model. Invalid: its state would write where no export() writes, over what torch or the class of a
module keeps under that name.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from .. import errors
from ..manifest import BUFFER, PARAMETER
from ..weights import Weights
from .state import State, invalid
from .structure import INTERNAL

# Where a registered tensor belongs, by name: its module, the attribute, and whether it is a parameter.
Places = dict[str, tuple[nn.Module, str, bool]]


def check(
    module: nn.Module,
    owners: Mapping[str, nn.Module],
    weights: Weights,
    views: Mapping[str, torch.Tensor],
    flags: Mapping[str, int],
    state: State,
    names: Collection[str],
) -> Places:
    """owners: the skeleton's modules by path; views, flags: of the model's tensors, by name; names: those to bind."""
    model = weights.manifest.name
    for name in names:
        if name not in views:
            weights[name]  # Usage: torch has no type for it
    places = _places(module, owners, model, flags, state)
    for path, attribute in _others(state):
        reason = _forbidden(owners[path], attribute) if path in owners else None
        if reason:
            raise invalid(model, f"{attribute!r} of module {path or '(the root)'} {reason}")
    for name, attributes in state.flags.items():
        _check_flags(owners, model, name, attributes)
    if state.reshaped is not None:
        _check_shapes(places, model, views, names, state.reshaped)
    return places


def _places(
    module: nn.Module, owners: Mapping[str, nn.Module], model: str, flags: Mapping[str, int], state: State
) -> Places:
    places: Places = {}
    missing = {path for path in (*state.plain, *state.scalars) if path not in owners}
    forbidden = []
    for name, flag in flags.items():
        if not flag & (PARAMETER | BUFFER):
            continue
        path, _, attribute = name.rpartition(".")
        owner = owners.get(path)
        if owner is None:
            missing.add(path)
            continue
        places[name] = owner, attribute, bool(flag & PARAMETER)
        if attribute not in owner._parameters and (reason := _forbidden(owner, attribute)):
            forbidden.append(f"{attribute!r} of module {path or '(the root)'} {reason}")
    if missing:
        shown = errors.listed(sorted(missing))
        raise errors.Mismatch(
            f"{model} is another model: {type(module).__name__} has no {shown}", 0, "modules",
            f"{len(owners)} modules", shown,
        )  # fmt: skip
    if forbidden:
        raise invalid(model, forbidden[0])
    return places


def _others(state: State) -> Iterator[tuple[str, str]]:
    """(module path, attribute) of all that is written or removed beside registered tensors."""
    for name in (*state.deleted, *state.none):
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
    places: Places, model: str, views: Mapping[str, torch.Tensor], names: Collection[str], reshaped: Container[str]
) -> None:
    """A parameter that loading and post-processing left in its shape has it in every skeleton of the model. Of those that
    were reshaped, and of buffers, which may be as large as the caller's limits, nothing can be said."""
    for name in names:
        place = places.get(name)
        old = place[0]._parameters.get(place[1]) if place is not None and place[2] else None
        if old is None or name in reshaped or is_lazy(old) or old.shape == views[name].shape:
            continue
        expected, got = (str(list(tensor.shape)) for tensor in (old, views[name]))
        raise errors.Mismatch(
            f"{model} is another model: {name} is {got} in it, and {expected} in the skeleton", 0,
            f"shape of {name}", expected, got,
        )  # fmt: skip
