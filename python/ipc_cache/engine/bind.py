"""bind(): a skeleton becomes the published model, its tensors views of shared memory.

A parameter stays the object that it is, of its class and with its attributes: only the memory behind it is exchanged. So
whoever else holds it (ties, kernels, loaders) sees the shared weights too. Nothing is copied but what must be private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..manifest import BUFFER, HIDDEN, PARAMETER
from ..weights import Weights
from . import fit
from .state import State, read
from .structure import Tree, modules, registered

Private = Callable[[str, torch.Tensor], bool]

# Bytes that are copied whole for one of its tensors: what publish() lays small tensors into. More would be the engine's
# memory for nothing: a small model's segments have its weights in them, too.
SMALL_SEGMENT = 2 << 20


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
    """Gives `old` the memory, type and shape of `new`; its class and attributes stay. The shape may be another one: a
    skeleton is what the constructor made, and post-processing packs, transposes and pads. Where it has not, fit.py has
    compared them."""
    made = torch.Tensor._make_subclass(type(old), new, False)
    torch._C._swap_tensor_impl(old, made)


def copy_of(old: torch.Tensor) -> torch.Tensor:
    """Another object over the same memory, of the same class and with the same attributes."""
    made = torch.Tensor._make_subclass(type(old), old.detach(), False)
    made.__dict__.update(old.__dict__)
    return made


class _Copies:
    """Writable copies of shared tensors, on their device or on the host. Every copy on a GPU costs more than its bytes:
    tensors of a small segment there are copied with all of it in one go, and are views of that copy."""

    def __init__(self) -> None:
        self.segments: dict[tuple[int, bool], torch.Tensor] = {}
        self.typed: dict[tuple[int, bool, torch.dtype], torch.Tensor] = {}

    def of(self, view: torch.Tensor, host: bool) -> torch.Tensor:
        storage = view.untyped_storage()
        if storage.nbytes() > SMALL_SEGMENT or view.device.type == "cpu":
            return view.cpu() if host else view.clone()
        key = (storage.data_ptr(), host, view.dtype)
        if key not in self.typed:
            whole = self.segment(storage, view.device, host)
            self.typed[key] = whole[: whole.numel() // view.itemsize * view.itemsize].view(view.dtype)
        return self.typed[key].as_strided(view.shape, view.stride(), view.storage_offset())

    def segment(self, storage: torch.UntypedStorage, device: torch.device, host: bool) -> torch.Tensor:
        """A copy of a segment's bytes, made once."""
        key = (storage.data_ptr(), host)
        if key not in self.segments:
            whole = torch.empty(0, dtype=torch.uint8, device=device).set_(storage, 0, (storage.nbytes(),), (1,))
            self.segments[key] = whole.cpu() if host else whole.clone()
        return self.segments[key]


class _Binder:
    def __init__(
        self,
        owners: dict[str, nn.Module],
        weights: Weights,
        flags: dict[str, int],
        state: State,
        private: Private | None,
    ) -> None:
        self.owners = owners
        self.weights, self.flags, self.state, self.private = weights, flags, state, private
        self.views = weights._views()  # of types that this torch knows
        self.copies = _Copies()
        self.out = Bound()
        self.objects: dict[str, torch.Tensor] = {}  # what stands under a name now
        self.done: set[int] = set()  # the ids of these objects

    def owner(self, name: str) -> tuple[nn.Module, str]:
        path, _, attribute = name.rpartition(".")
        return self.owners[path], attribute

    def tensor(self, name: str) -> torch.Tensor:
        """The memory for a name: shared, or a copy of its own."""
        view = self.views[name] if name in self.views else self.weights[name]
        if name in self.state.host and view.device.type != "cpu":
            view = self.copies.of(view, True)
        elif self.private is not None and self.private(name, view):
            view = self.copies.of(view, False)
        else:
            self.out.shared.append(name)
            self.out.shared_bytes += view.nbytes
            return view
        self.out.copied.append(name)
        self.out.copied_bytes += view.nbytes
        return view

    def registered(self, name: str, kind: str) -> None:
        owner, attribute = self.owner(name)
        same = self.state.same.get(name, name)  # its own name is not bound yet
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
        here = owner._parameters if kind == "parameter" else owner._buffers
        if made is not old or attribute not in here or attribute in owner._non_persistent_buffers_set:
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
            exchange(made, self.tensor(name))
        else:
            made = self.tensor(name)
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

    def run(self, ignore: Callable[[str], bool] | None) -> Bound:
        flags = self.flags
        names = [name for name in flags if ignore is None or not ignore(name)]
        same = self.state.same
        # The first name of an object comes before its others, whatever the order of the table.
        for name in sorted(names, key=lambda n: n in same):
            if flags[name] & (PARAMETER | BUFFER):
                self.registered(name, "parameter" if flags[name] & PARAMETER else "buffer")
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


def _flags(weights: Weights) -> dict[str, int]:
    """Of all tensors, in the order of the manifest."""
    manifest = weights.manifest
    return {name: flag for name, flag in zip(manifest.names, manifest.flags) if not name.startswith(HIDDEN)}


def bind(
    module: nn.Module,
    weights: Weights,
    *,
    private: Private | None = None,
    ignore: Callable[[str], bool] | None = None,
) -> Bound:
    """Binds a skeleton() of the published model to the attached weights of an export.

    private(name, tensor): this one shall be a private, writable copy. ignore(name): leave this one as the skeleton has it.
    Raises Usage for what export() did not publish, Mismatch when the skeleton is of another model, Invalid for a state that
    export() does not write; then the skeleton is as it was. Call check_no_meta() when everything else is done too.
    """
    owners, flags = dict(modules(module)), _flags(weights)
    state = read(weights, flags)
    fit.check(module, owners, weights, flags, state, ignore)
    out = _Binder(owners, weights, flags, state, private).run(ignore)
    out.left = [
        name
        for path, part in owners.items()
        for name, _, tensor, _ in registered(path, part)
        if tensor is not None and tensor.is_meta
    ]
    return out
