"""bind(): a skeleton becomes the published model, its tensors views of shared memory.

A parameter stays the object that it is, of its class and with its attributes: only the memory behind it is exchanged. So
whoever else holds it (ties, kernels, loaders) sees the shared weights too. Nothing is copied but what must be private.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .. import errors
from ..manifest import BUFFER, PARAMETER
from ..weights import Weights
from .export import STATE, VERSION
from .structure import Tree, modules, registered
from .values import decode

Private = Callable[[str, torch.Tensor], bool]


@dataclass
class Bound:
    """Names by what became of them: views of shared memory; private copies; objects that the skeleton did not have.
    left: registered names that are still on `meta`. The bytes are those of the tensors, not of segments."""

    shared: list[str] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    shared_bytes: int = 0
    copied_bytes: int = 0


def exchange(old: torch.Tensor, new: torch.Tensor) -> None:
    """Gives `old` the memory, type and shape of `new`; its class and attributes stay."""
    made = torch.Tensor._make_subclass(type(old), new, False)
    torch._C._swap_tensor_impl(old, made)


def copy_of(old: torch.Tensor) -> torch.Tensor:
    """Another object over the same memory, of the same class and with the same attributes."""
    made = torch.Tensor._make_subclass(type(old), old.detach(), False)
    made.__dict__.update(old.__dict__)
    return made


class _Binder:
    def __init__(self, module: nn.Module, weights: Weights, state: dict[str, Any], private: Private | None) -> None:
        self.owners = dict(modules(module))
        self.weights, self.state, self.private = weights, state, private
        self.host = set(state["host"])
        self.out = Bound()
        self.objects: dict[str, torch.Tensor] = {}  # what stands under a name now
        self.done: set[int] = set()  # the ids of these objects

    def owner(self, name: str) -> tuple[nn.Module, str]:
        path, _, attribute = name.rpartition(".")
        return self.owners[path], attribute

    def tensor(self, name: str) -> torch.Tensor:
        """The memory for a name: shared, or a copy of its own."""
        view = self.weights[name]
        if name in self.host and view.device.type != "cpu":
            view = view.cpu()
        elif self.private is not None and self.private(name, view):
            view = view.clone()
        else:
            self.out.shared.append(name)
            self.out.shared_bytes += view.nbytes
            return view
        self.out.copied.append(name)
        self.out.copied_bytes += view.nbytes
        return view

    def registered(self, name: str, kind: str) -> None:
        owner, attribute = self.owner(name)
        same = self.state["same"].get(name, name)  # its own name is not bound yet
        old: torch.Tensor | None = owner._parameters.get(attribute)
        old = owner._buffers.get(attribute) if old is None else old
        if same in self.objects:
            made = self.objects[same]
        elif old is not None and (kind == "buffer" or isinstance(old, nn.Parameter)):
            # One object in the skeleton, and two in the published model: the second name gets an object of its own.
            made = old if id(old) not in self.done else copy_of(old)
            exchange(made, self.tensor(name))
        elif kind == "parameter":
            made = nn.Parameter(self.tensor(name), requires_grad=False)
            self.out.created.append(name)
        else:
            made = self.tensor(name)
            self.out.created.append(name)
        self.place(owner, attribute, made, kind)
        self.objects[name] = made
        self.done.add(id(made))

    @staticmethod
    def place(owner: nn.Module, attribute: str, made: torch.Tensor, kind: str) -> None:
        to, other = (owner._parameters, owner._buffers) if kind == "parameter" else (owner._buffers, owner._parameters)
        other.pop(attribute, None)
        owner.__dict__.pop(attribute, None)
        to[attribute] = made  # type: ignore[assignment]
        owner._non_persistent_buffers_set.discard(attribute)

    def plain(self, tree: Tree, old: Any) -> Any:
        """The value that a tree describes; `old` is what the skeleton has in its place."""
        kind, *body = tree
        if kind == "tensor":
            return self.plain_tensor(body[0], old)
        if kind == "value":
            return decode(body[0])
        if kind == "keep":
            return old
        if kind == "dict":
            before = old if type(old) is dict else {}
            made = {key: self.plain(part, before.get(key)) for key, part in body[0]}
            if type(old) is not dict:
                return made
            old.clear()  # others may hold the very dict
            old.update(made)
            return old
        before_list = list(old) if isinstance(old, (list, tuple)) else []
        before_list += [None] * (len(body[0]) - len(before_list))
        parts = [self.plain(part, entry) for part, entry in zip(body[0], before_list)]
        if kind == "list" and type(old) is list:
            old[:] = parts
            return old
        return parts if kind == "list" else tuple(parts)

    def plain_tensor(self, name: str, old: Any) -> torch.Tensor:
        same = self.state["same"].get(name)
        if same is not None and same in self.objects:
            made = self.objects[same]
        elif isinstance(old, nn.Parameter) and id(old) not in self.done:
            made = old
            exchange(made, self.tensor(name))
        else:
            made = self.tensor(name)
        self.objects[name] = made
        return made

    def remove(self) -> None:
        for name in self.state["deleted"]:
            path, _, attribute = name.partition("[")[0].rpartition(".")
            owner = self.owners.get(path)
            if owner is not None and "[" not in name:
                for where in (owner._parameters, owner._buffers, owner.__dict__):
                    where.pop(attribute, None)
        for name in self.state["none"]:
            path, _, attribute = name.rpartition(".")
            owner = self.owners.get(path)
            if owner is None:
                continue
            where = owner._buffers if attribute in owner._buffers else owner._parameters
            if attribute in owner.__dict__:
                owner.__dict__[attribute] = None
            else:
                where[attribute] = None

    def run(self, ignore: Callable[[str], bool] | None) -> Bound:
        names = [name for name in self.weights if ignore is None or not ignore(name)]
        flags = {name: self.weights.entry(name).flags for name in names}
        same = self.state["same"]
        # The first name of an object comes before its others, whatever the order of the table.
        for name in sorted(names, key=lambda n: n in same):
            if flags[name] & (PARAMETER | BUFFER):
                self.registered(name, "parameter" if flags[name] & PARAMETER else "buffer")
        wanted = set(names)
        for path, attributes in self.state["plain"].items():
            owner = self.owners[path]
            for attribute, tree in attributes.items():
                if _names(tree) <= wanted:
                    owner.__dict__[attribute] = self.plain(tree, owner.__dict__.get(attribute))
        self.remove()
        for path, values in self.state["scalars"].items():
            for attribute, value in values.items():
                self.owners[path].__dict__[attribute] = decode(value)
        for name, attributes in self.state["flags"].items():
            if name in self.objects:
                for attribute, value in attributes.items():
                    setattr(self.objects[name], attribute, decode(value))
        return self.out


def _names(tree: Tree) -> set[str]:
    """Of the tensors in a tree."""
    if tree[0] == "tensor":
        return {tree[1]}
    if tree[0] in ("list", "tuple"):
        return set().union(*(_names(part) for part in tree[1]))
    if tree[0] == "dict":
        return set().union(*(_names(part) for _, part in tree[1]))
    return set()


def _check(module: nn.Module, weights: Weights, state: dict[str, Any]) -> None:
    """Is this the model that the skeleton is of? Mismatch lists what it has no place for."""
    owners = dict(modules(module))
    paths = {n.rpartition(".")[0] for n in weights if weights.entry(n).flags & (PARAMETER | BUFFER)}
    paths |= set(state["plain"]) | set(state["scalars"])
    missing = sorted(path for path in paths if path not in owners)
    if missing:
        shown = ", ".join(missing[:20])
        raise errors.Mismatch(
            f"{weights.manifest.name} is another model: {type(module).__name__} has no {shown}", 0, "modules",
            f"{len(owners)} modules", shown,
        )  # fmt: skip


def bind(
    module: nn.Module,
    weights: Weights,
    *,
    private: Private | None = None,
    ignore: Callable[[str], bool] | None = None,
) -> Bound:
    """Binds a skeleton() of the published model to the attached weights of an export.

    private(name, tensor): this one shall be a private, writable copy. ignore(name): leave this one as the skeleton has it.
    Raises Mismatch when the skeleton is of another model. Call check_no_meta() when everything else is done too.
    """
    if STATE not in weights.manifest.attributes:
        raise errors.Usage(f"{weights.manifest.name} was not published by export(); attach_module() binds checkpoints")
    state = weights.attribute(STATE)
    if state.get("version") != VERSION:
        raise errors.Mismatch(
            f"{weights.manifest.name} was exported in version {state.get('version')}, this package binds {VERSION}; "
            f"publish it again", 0, "export version", str(VERSION), str(state.get("version")),
        )  # fmt: skip
    _check(module, weights, state)
    out = _Binder(module, weights, state, private).run(ignore)
    out.left = [
        name
        for path, part in modules(module)
        for name, _, tensor, _ in registered(path, part)
        if tensor is not None and tensor.is_meta
    ]
    return out
