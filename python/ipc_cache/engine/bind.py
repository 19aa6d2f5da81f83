"""bind(): a skeleton becomes the published model, its tensors views of shared memory.

A parameter stays the object that it is, of its class and with its attributes: only the memory behind it is exchanged. So
whoever else holds it (ties, kernels, loaders) sees the shared weights too. Nothing is copied but what must be private.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..manifest import HIDDEN
from ..weights import Weights
from . import fit
from .memory import Memory, copy_of
from .state import State, read
from .structure import Tree, modules, registered


@dataclass(frozen=True)
class Bound:
    """Names by what became of them: views of shared memory; private copies; objects that the skeleton did not have. The
    bytes are those of the tensors, not of segments."""

    shared: list[str]
    copied: list[str]
    created: list[str]
    shared_bytes: int
    copied_bytes: int
    _owners: dict[str, nn.Module] = field(repr=False, compare=False)

    @property
    def left(self) -> list[str]:
        """Registered names that are on `meta` now."""
        return [
            name
            for path, part in self._owners.items()
            for name, _, tensor, _ in registered(path, part)
            if tensor is not None and tensor.is_meta
        ]


class _Binder:
    def __init__(self, owners: dict[str, nn.Module], memory: Memory, state: State) -> None:
        self.owners, self.memory, self.state = owners, memory, state
        self.objects: dict[str, torch.Tensor] = {}  # what stands under a name now
        self.done: set[int] = set()  # the ids of these objects
        self.taken: list[str] = []
        self.created: list[str] = []

    def fill(self, made: torch.Tensor, name: str) -> None:
        self.memory.fill(made, name)
        self.taken.append(name)
        self.objects[name] = made
        self.done.add(id(made))

    def make(self, name: str) -> torch.Tensor:
        self.taken.append(name)
        return self.memory.take(name)

    def registered(self, name: str, owner: nn.Module, attribute: str, parameter: bool) -> None:
        old = (owner._parameters if parameter else owner._buffers).get(attribute)
        if old is None or name in self.state.same or id(old) in self.done or owner._non_persistent_buffers_set:
            self.rearranged(name, owner, attribute, parameter)
        else:  # nearly all
            self.fill(old, name)

    def rearranged(self, name: str, owner: nn.Module, attribute: str, parameter: bool) -> None:
        """Where the skeleton has no object of its own for it, or has it as something else."""
        same = self.state.same.get(name, name)  # its own name is not bound yet
        old: torch.Tensor | None = owner._parameters.get(attribute)
        old = owner._buffers.get(attribute) if old is None else old
        if same in self.objects:
            made = self.objects[same]
        elif old is not None and (not parameter or isinstance(old, nn.Parameter)):
            # One object in the skeleton, and two in the published model: the second name gets an object of its own.
            made = old if id(old) not in self.done else copy_of(old)
            self.fill(made, name)
        else:
            made = self.make(name)
            made = nn.Parameter(made, requires_grad=False) if parameter else made
            self.created.append(name)
        here = owner._parameters if parameter else owner._buffers
        if made is not old or attribute not in here or attribute in owner._non_persistent_buffers_set:
            self.place(owner, attribute, made, parameter)
        self.objects[name] = made
        self.done.add(id(made))

    @staticmethod
    def place(owner: nn.Module, attribute: str, made: torch.Tensor, parameter: bool) -> None:
        to, other = (owner._parameters, owner._buffers) if parameter else (owner._buffers, owner._parameters)
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
            return body[0]
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
        same = self.state.same.get(name)
        if same is not None and same in self.objects:
            made = self.objects[same]
        elif isinstance(old, nn.Parameter) and id(old) not in self.done:
            made = old
            self.fill(made, name)
        else:
            made = self.make(name)
        self.objects[name] = made
        return made

    def removed(self, names: list[str]) -> Iterator[tuple[nn.Module, str]]:
        """(module, attribute) of those that the skeleton may have; what a container holds goes with the container."""
        for name in names:
            path, _, attribute = name.rpartition(".")
            if "[" not in name and path in self.owners:
                yield self.owners[path], attribute

    def remove(self) -> None:
        for owner, attribute in self.removed(self.state.deleted):
            for where in (owner._parameters, owner._buffers, owner.__dict__):
                where.pop(attribute, None)
        for owner, attribute in self.removed(self.state.none):
            registered = owner._buffers if attribute in owner._buffers else owner._parameters
            where = owner.__dict__ if attribute in owner.__dict__ else registered
            where[attribute] = None

    def run(self, names: list[str], places: fit.Places) -> Bound:
        """names: those to bind."""
        # The first name of an object comes before its others, whatever the order of the table.
        for name in sorted(names, key=self.state.same.__contains__):
            place = places.get(name)
            if place is not None:
                self.registered(name, *place)
        wanted = set(names)
        for path, attributes in self.state.plain.items():
            owner = self.owners[path]
            for attribute, tree in attributes.items():
                if _names(tree) <= wanted:
                    owner.__dict__[attribute] = self.plain(tree, owner.__dict__.get(attribute))
        self.remove()
        for path, values in self.state.scalars.items():
            for attribute, value in values.items():
                self.owners[path].__dict__[attribute] = value
        for name, attributes in self.state.flags.items():
            if name in self.objects:
                self.objects[name].__dict__.update(attributes)
        copies, sizes = self.memory.copies, self.memory.sizes
        shared, copied = [n for n in self.taken if n not in copies], [n for n in self.taken if n in copies]
        size, private_size = (sum(map(sizes.__getitem__, taken)) for taken in (shared, copied))
        return Bound(shared, copied, self.created, size, private_size, self.owners)


def _names(tree: Tree) -> set[str]:
    """Of the tensors in a tree."""
    if tree[0] == "tensor":
        return {tree[1]}
    if tree[0] in ("list", "tuple"):
        return set().union(*(_names(part) for part in tree[1]))
    if tree[0] == "dict":
        return set().union(*(_names(part) for _, part in tree[1]))
    return set()


def bind(
    module: nn.Module,
    weights: Weights,
    *,
    private: Collection[str] = (),
    ignore: Callable[[str], bool] | None = None,
) -> Bound:
    """Binds a skeleton() of the published model to the attached weights of an export.

    private: the names of tensors that shall be private, writable copies. ignore(name): leave this one as the skeleton has
    it. Raises Usage for what export() did not publish, and for types that this torch and names that the model does not
    have, Mismatch when the skeleton is of another model, Invalid for a state that export() does not write; then the
    skeleton is as it was. Call check_no_meta() when everything else is done too.
    """
    manifest = weights.manifest
    # Engines' own classes of parameters look at every access to an attribute of theirs.
    with torch._C.DisableTorchFunctionSubclass():
        owners = dict(modules(module))
        flags = {n: flag for n, flag in zip(manifest.names, manifest.flags) if not n.startswith(HIDDEN)}
        state = read(weights, flags)
        memory = Memory(weights, flags, state.host, private)
        names = [name for name in flags if ignore is None or not ignore(name)]
        places = fit.check(module, owners, weights, memory.views, flags, state, names)
        return _Binder(owners, memory, state).run(names, places)
