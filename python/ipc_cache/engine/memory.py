"""Tensor objects and the memory behind them: what a name's is, and how an object gets it.

Invariant: nobody has the memory that another object was given to change: a view is given away once, private copies share
nothing with each other or with anybody.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import torch

from .. import errors
from ..manifest import SEGMENT_AT
from ..tensors import COPY, HOST_COPY, SHARED, Copies
from ..weights import Weights

# Every copy on a GPU costs more than its bytes, and publish() lays small tensors side by side: so the part of a segment in
# which all private ones lie is copied at once, unless it is longer than this.
_PART_BYTES = 2 << 20
_ALIGNMENT = 256  # of where a part begins: what publish() has aligned stays so

_swap: Any = torch._C._swap_tensor_impl


def another(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor over the same memory; no view in autograd's sense."""
    return torch.Tensor._make_subclass(torch.Tensor, tensor, False)


def copy_of(old: torch.Tensor) -> torch.Tensor:
    """Another object over the same memory, of the same class and with the same attributes."""
    made = torch.Tensor._make_subclass(type(old), old.detach(), False)
    made.__dict__.update(old.__dict__)
    return made


def exchange(old: torch.Tensor, new: torch.Tensor) -> None:
    """Gives `old` the memory, type and shape of `new`; its class and attributes stay. The shape may be another one: a
    skeleton is what the constructor made, and post-processing packs, transposes and pads. Where it has not, fit.py has
    compared them."""
    hand_over(old, another(new))


def hand_over(old: torch.Tensor, new: torch.Tensor) -> None:
    """exchange() with an object that nobody needs any more: it has afterwards what `old` had."""
    if _dispatches(type(old)):
        new = torch.Tensor._make_subclass(type(old), new, False)
    _swap(old, another(new) if new._is_view() else new)


@functools.cache
def _dispatches(kind: type) -> bool:
    """Does this class want to see every operation? Its memory must say so, too."""
    return getattr(kind, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__


class Memory:
    """The memory for every name of a model: shared, or a private copy."""

    def __init__(
        self, weights: Weights, names: Collection[str], host: Collection[str], private: Collection[str]
    ) -> None:
        """names: of the model, those in `host` lay on the publisher's host."""
        unknown = [private] if isinstance(private, str) else [name for name in private if name not in names]
        if unknown:
            raise errors.Usage(
                f"private has the names of tensors; {weights.manifest.name} has no {errors.listed(unknown)}"
            )
        self.sizes = dict(zip(weights.manifest.names, weights.manifest.sizes))
        self.copies = dict.fromkeys(private, COPY)
        if weights.device.type != "cpu":
            self.copies |= dict.fromkeys(host, HOST_COPY)
        together, overlapping = self._together(weights)
        self.views = weights._new_views(together)
        sets = dict(zip(weights.manifest.names, together.sets))
        # Of those that have gaps or repeat themselves a copy is dense.
        self._alone = {
            name
            for name in self.copies
            if sets[name] == SHARED
            or name in overlapping
            or (name in self.views and self.views[name].nbytes != self.sizes[name])
        }
        self._holders: dict[int, torch.Tensor] = {}  # who has a view's memory now, by the view's id

    def _together(self, weights: Weights) -> tuple[Copies, set[str]]:
        """What is copied together, those whose part would be too long left out; and names that share bytes with others."""
        manifest = weights.manifest
        table = zip(manifest.names, manifest.column(SEGMENT_AT), manifest.offsets, manifest.sizes)
        wanted = [(self.copies[row[0]], *row[1:], row[0]) for row in table if row[0] in self.copies]
        parts: dict[tuple[int, int], tuple[int, int]] = {}
        overlapping: set[str] = set()
        before = (-1, -1, 0, "")  # set, segment, end, name
        for which, segment, offset, nbytes, name in sorted(wanted):
            begin, end = parts.get((which, segment), (offset // _ALIGNMENT * _ALIGNMENT, 0))
            parts[which, segment] = begin, max(end, offset + nbytes)
            if before[:2] == (which, segment) and offset < before[2]:
                overlapping |= {name, before[3]}
            if before[:2] != (which, segment) or offset + nbytes > before[2]:
                before = which, segment, offset + nbytes, name
        parts = {place: part for place, part in parts.items() if part[1] - part[0] <= _PART_BYTES}
        segments = zip(map(self.copies.get, manifest.names), manifest.column(SEGMENT_AT))
        sets = bytes(
            which if which is not None and (which, segment) in parts else SHARED for which, segment in segments
        )
        return Copies(sets, parts), overlapping

    def take(self, name: str) -> torch.Tensor:
        """An object of its own for a name."""
        view = self.views[name]
        if name in self._alone:
            return view.cpu() if self.copies[name] == HOST_COPY and view.device.type != "cpu" else view.clone()
        holder = self._holders.get(id(view))
        if holder is not None:  # an alias has its owner's view
            return another(holder)
        self._holders[id(view)] = view
        return view

    def fill(self, made: torch.Tensor, name: str) -> None:
        """Gives an object of the skeleton the memory for a name."""
        new = self.take(name)
        hand_over(made, new)
        if self._holders.get(id(new)) is new:
            self._holders[id(new)] = made
