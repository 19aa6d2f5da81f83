"""torch tensors over an attached model: one uint8 tensor for each segment, and views of it.

A segment becomes a tensor through DLPack, whose deleter keeps the mapping; every view shares that storage. Nothing here
knows whether memory is the host's or a GPU's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from . import dlpack, dtypes, errors
from .manifest import ALIAS, Manifest, TensorEntry

_CUDA_KINDS = (2, 10)  # torch calls AMD's GPUs cuda too


def device_of(model: int, manifest: Manifest) -> torch.device:
    """Where the segments lie."""
    kind, number = dlpack.device(model, 0) if manifest.segments else (dlpack.CPU, 0)
    return torch.device("cuda", number) if kind in _CUDA_KINDS else torch.device("cpu")


def bytes_of(model: int, entry: TensorEntry) -> torch.Tensor:
    """The bytes of one tensor."""
    return from_dlpack(dlpack.segment_capsule(model, entry.segment, entry.nbytes, entry.offset))


class _Bases:
    """Segments seen as each type, made when they are first needed."""

    def __init__(self, model: int, manifest: Manifest) -> None:
        self._model = model
        self._sizes = [segment.nbytes for segment in manifest.segments]
        self._segments: dict[int, torch.Tensor] = {}
        self._typed: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def typed(self, segment: int, kind: torch.dtype) -> torch.Tensor:
        found = self._typed.get((segment, kind))
        if found is None:
            base = self._segments.get(segment)
            if base is None:
                base = from_dlpack(dlpack.segment_capsule(self._model, segment, self._sizes[segment]))
                self._segments[segment] = base
            whole = base.numel() // kind.itemsize * kind.itemsize
            found = self._typed[segment, kind] = base[:whole].view(kind)
        return found


def _halve(name: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two 4-bit elements are one of torch's: the last dimension is the packed one."""
    if not shape or shape[-1] % 2 or strides[-1] != 1 or any(s % 2 for s in strides[:-1]):
        raise errors.Invalid(f"{name}: 4-bit elements of shape {shape} and strides {strides} are no whole bytes")
    return (*shape[:-1], shape[-1] // 2), (*(s // 2 for s in strides[:-1]), 1)


def _packed(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] // 2) if number == dtypes.F4 else shape


def build(model: int, manifest: Manifest) -> dict[str, torch.Tensor]:
    """All tensors of types that this torch knows, in the order of the manifest. An alias with its owner's very view is
    the owner's tensor object."""
    kinds = dtypes.torch_types()
    sizes = {number: kind.itemsize for number, kind in kinds.items()}
    bases = _Bases(model, manifest)
    made: dict[str, torch.Tensor] = {}
    rows: list[tuple[Any, ...]] = list(manifest.rows())
    names = manifest.names
    for name, row in zip(names, rows):
        number, rank, segment, flags, offset = row[2], row[3], row[20], row[21], row[22]
        kind = kinds.get(number)
        if kind is None:
            continue
        if flags & ALIAS and rows[row[24]][2:21] == row[2:21] and rows[row[24]][22] == offset:
            made[name] = names[row[24]]  # type: ignore[assignment]  # resolved below: owners may come later
            continue
        shape, strides = row[4 : 4 + rank], row[12 : 12 + rank]
        if 0 in shape:
            made[name] = torch.empty(_packed(number, shape), dtype=kind, device=bases.typed(segment, kind).device)
            continue
        if number == dtypes.F4:
            shape, strides = _halve(name, shape, strides)
        if offset % sizes[number]:
            raise errors.Invalid(f"{name} begins at byte {offset}, in the middle of an element")
        made[name] = bases.typed(segment, kind).as_strided(shape, strides, offset // sizes[number])
    for name, tensor in made.items():
        if isinstance(tensor, str):
            made[name] = made[tensor]
    return made
