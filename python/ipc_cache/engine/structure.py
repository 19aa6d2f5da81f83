"""Where a module's tensors are: registered ones, and plain ones in its __dict__, also inside lists, tuples and dicts.

A plain attribute that holds tensors is described by a tree:
    ["tensor", NAME]  ["list", [TREE...]]  ["tuple", [TREE...]]  ["dict", [[KEY, TREE]...]]  ["value", JSON]  ["keep"]
where "keep" is what cannot travel. Names: "layers.0.weight" for registered tensors; plain ones likewise, with an index or
key behind ("layers.0.scales[1]", "layers.0.cache['k']").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from .values import NotPlain, encode

MAX_DEPTH = 8  # of containers in containers

# What every module has in its __dict__; torch's own.
INTERNAL = frozenset(nn.Module().__dict__)

Tree = list[Any]


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules by path, each before its children; one that is registered twice is there twice. As named_modules(), which
    is recursive: every module costs as many steps as it lies deep."""
    pending = [("", module)]
    while pending:
        path, part = pending.pop()
        yield path, part
        if part._modules:
            below = [(join(path, name), child) for name, child in part._modules.items() if child is not None]
            pending += below[::-1]


def registered(path: str, module: nn.Module) -> Iterator[tuple[str, str, torch.Tensor | None, str]]:
    """(name, attribute, tensor or None, kind) of a module's own parameters and persistent buffers."""
    for attribute, parameter in module._parameters.items():
        yield join(path, attribute), attribute, parameter, "parameter"
    for attribute, buffer in module._buffers.items():
        if attribute not in module._non_persistent_buffers_set:
            yield join(path, attribute), attribute, buffer, "buffer"


def plain(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """A module's own attributes that torch does not know."""
    for attribute, value in list(module.__dict__.items()):
        if attribute not in INTERNAL:
            yield attribute, value


def tree_of(name: str, value: Any, found: dict[str, torch.Tensor], depth: int = 0) -> Tree:
    """The tree of a value; its tensors are added to `found` by name."""
    if isinstance(value, torch.Tensor):
        found[name] = value
        return ["tensor", name]
    kind = type(value)
    if depth < MAX_DEPTH:
        if kind in (list, tuple):
            parts = [tree_of(f"{name}[{i}]", entry, found, depth + 1) for i, entry in enumerate(value)]
            return ["list" if kind is list else "tuple", parts]
        if kind is dict and all(type(key) in (str, int) for key in value):
            pairs = [[key, tree_of(f"{name}[{key!r}]", entry, found, depth + 1)] for key, entry in value.items()]
            return ["dict", pairs]
    try:
        return ["value", encode(value)]
    except NotPlain:
        return ["keep"]


def plain_trees(path: str, module: nn.Module) -> Iterator[tuple[str, Tree, dict[str, torch.Tensor]]]:
    """(attribute, tree, its tensors by name) of the plain attributes that hold tensors."""
    for attribute, value in plain(module):
        found: dict[str, torch.Tensor] = {}
        tree = tree_of(join(path, attribute), value, found)
        if found:
            yield attribute, tree, found


def scalars(module: nn.Module) -> dict[str, Any]:
    """A module's plain attributes without tensors, as JSON where they can travel, by attribute."""
    values = {}
    for attribute, value in plain(module):
        try:
            values[attribute] = encode(value)
        except NotPlain:
            continue
    return values


@dataclass
class Structure:
    """What a module had when it was looked at: shapes of tensors by name (None: not known yet), and host state by module
    path."""

    tensors: dict[str, torch.Size | None] = field(default_factory=dict)
    state: dict[str, dict[str, Any]] = field(default_factory=dict)


def snapshot(module: nn.Module) -> Structure:
    """Looks at a module, best right after its construction, so that export() can tell what loading has changed."""
    structure = Structure()
    for path, part in modules(module):
        there = {name: tensor for name, _, tensor, _ in registered(path, part) if tensor is not None}
        for _, _, found in plain_trees(path, part):
            there.update(found)
        structure.tensors.update((name, None if is_lazy(tensor) else tensor.shape) for name, tensor in there.items())
        structure.state[path] = scalars(part)
    return structure
