"""torch tensors over an attached model: one uint8 tensor for each segment, and views of it.

A segment becomes a tensor through DLPack, whose deleter keeps the mapping; every view shares that storage. Nothing here
knows whether memory is the host's or a GPU's. The views are made in one call of the C library, through the C interface
that torch has for its own compiler; where a torch lacks it, by as_strided(), ten times slower and with the same result.

Tensors may be wanted in a copy of their part of a segment: a copy for each part, and their views are made with the others.
"""

from __future__ import annotations

import ctypes as c
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from . import _library, dlpack, dtypes, errors
from ._library import byref
from .manifest import ALIAS, DTYPE_AT, SEGMENT_AT, Manifest, TensorEntry

_CUDA_KINDS = (2, 10)  # torch calls AMD's GPUs cuda too

# What a view is of: the shared segment; a copy of a part of it where it lies; a copy on the host.
SHARED, COPY, HOST_COPY = _SETS = range(3)


@dataclass(frozen=True)
class Copies:
    """sets: for each tensor of the manifest SHARED, COPY or HOST_COPY. parts: by set and segment the bytes that are copied,
    from (a multiple of 256) and to; all tensors of the set lie in them."""

    sets: bytes
    parts: Mapping[tuple[int, int], tuple[int, int]]


def device_of(model: int, manifest: Manifest) -> torch.device:
    """Where the segments lie."""
    kind, number = dlpack.device(model, 0) if manifest.segments else (dlpack.CPU, 0)
    return torch.device("cuda", number) if kind in _CUDA_KINDS else torch.device("cpu")


def bytes_of(model: int, entry: TensorEntry) -> torch.Tensor:
    """The bytes of one tensor."""
    return from_dlpack(dlpack.segment_capsule(model, entry.segment, entry.nbytes, entry.offset))


class _Bases:
    """Segments, and copies of their parts, seen as each type; made when they are first needed."""

    def __init__(self, model: int, manifest: Manifest, copies: Copies | None) -> None:
        self._model = model
        self._sizes = [segment.nbytes for segment in manifest.segments]
        self._copies = copies
        self._whole: dict[tuple[int, int], torch.Tensor] = {}
        self._typed: dict[tuple[int, int, torch.dtype], torch.Tensor] = {}

    def begin(self, which: int, segment: int) -> int:
        """The byte of the segment where the base begins."""
        return self._copies.parts[which, segment][0] if which != SHARED and self._copies is not None else 0

    def whole(self, which: int, segment: int) -> torch.Tensor:
        """All its bytes."""
        found = self._whole.get((which, segment))
        if found is None:
            if which == SHARED or self._copies is None:
                found = from_dlpack(dlpack.segment_capsule(self._model, segment, self._sizes[segment]))
            else:
                begin, end = self._copies.parts[which, segment]
                part = self.whole(SHARED, segment)[begin:end]
                found = part.cpu() if which == HOST_COPY and part.device.type != "cpu" else part.clone()
            self._whole[which, segment] = found
        return found

    def typed(self, which: int, segment: int, kind: torch.dtype) -> torch.Tensor:
        found = self._typed.get((which, segment, kind))
        if found is None:
            base = self.whole(which, segment)
            rest = base.numel() % kind.itemsize
            found = self._typed[which, segment, kind] = (base[:-rest] if rest else base).view(kind)
        return found


class _Fast:
    """What ipcc_views() needs of torch and Python."""

    def __init__(self) -> None:
        torch_c: Any = torch._C
        self.take = torch_c._aoti.alloc_tensors_by_stealing_from_void_ptrs
        self.give = torch_c._aoti.unsafe_alloc_void_ptrs_from_tensors
        library = c.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
        functions = (
            library.aoti_torch__reinterpret_tensor, library.aoti_torch_delete_tensor_object,
            c.pythonapi.PyCapsule_New, c.pythonapi.PyUnicode_DecodeUTF8, c.pythonapi.PyList_SetItem,
        )  # fmt: skip
        self.addresses = [c.cast(function, c.c_void_p).value for function in functions]
        # An object of our own: others set other types on the one that ctypes.pythonapi has.
        self.pointer = c.PYFUNCTYPE(c.c_void_p, c.py_object, c.c_char_p)(("PyCapsule_GetPointer", c.pythonapi))
        self.make = _library.holding_lock("ipcc_views")


@functools.cache
def _fast() -> _Fast | None:
    if os.environ.get("IPC_CACHE_PLAIN_VIEWS"):
        return None
    try:
        return _Fast()
    except (AttributeError, OSError):  # another torch
        return None


def _all_views(
    fast: _Fast, model: int, manifest: Manifest, bases: _Bases, sets: bytes
) -> tuple[list[torch.Tensor], Any, list[str]]:
    """The views; for each tensor the place of its own, or VIEW_NONE; and its name."""
    kinds = dtypes.torch_types()
    count, segments = len(manifest), len(manifest.segments)
    columns = zip(sets, manifest.column(SEGMENT_AT), manifest.column(DTYPE_AT))
    used = [entry for entry in set(columns) if entry[2] in kinds]
    given = fast.give([bases.typed(which, segment, kinds[number]) for which, segment, number in used])
    begins = (c.c_uint64 * (max(segments, 1) * len(_SETS)))()
    table = (c.c_void_p * (_library.VIEW_DTYPES * len(begins)))()
    for (which, segment, number), capsule in zip(used, given):
        place = which * segments + segment
        begins[place] = bases.begin(which, segment)
        table[place * _library.VIEW_DTYPES + number] = fast.pointer(capsule, None)
    capsules: list[Any] = [None] * count
    names: list[Any] = [None] * count
    places = (c.c_uint32 * max(count, 1))()
    views = _library.Views(
        *fast.addresses, c.addressof(table), c.addressof(begins), sets, capsules, names, c.addressof(places), 0
    )
    error = _library.ErrorStruct()
    try:
        code = fast.make(model, byref(views), byref(error))
        made = fast.take(capsules if views.made == count else capsules[: views.made])
    finally:
        fast.take(given)
    _library.check(code, error)
    return made, places, names


def _empty(kind: torch.dtype, row: tuple[Any, ...], device: torch.device) -> torch.Tensor:
    """A tensor without elements has no memory to share."""
    shape = row[4 : 4 + row[3]]
    if row[2] == dtypes.F4 and shape:
        shape = (*shape[:-1], shape[-1] // 2)
    return torch.empty(shape, dtype=kind, device=device)


def _build_fast(fast: _Fast, model: int, manifest: Manifest, bases: _Bases, sets: bytes) -> dict[str, torch.Tensor]:
    kinds = dtypes.torch_types()
    views, places, names = _all_views(fast, model, manifest, bases, sets)
    if len(views) == len(names):
        return dict(zip(names, views))
    made: dict[str, torch.Tensor] = {}
    for which, name, place, row in zip(sets, names, places, manifest.rows()):
        if place != _library.VIEW_NONE:
            made[name] = views[place]
        elif row[23] == 0 and row[2] in kinds:
            made[name] = _empty(kinds[row[2]], row, bases.whole(which, row[20]).device)
    return made


def _halve(name: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two 4-bit elements are one of torch's: the last dimension is the packed one."""
    if not shape or shape[-1] % 2 or strides[-1] > 1 or any(s % 2 for s in strides[:-1]):
        raise errors.Invalid(f"{name}: 4-bit elements of shape {shape} and strides {strides} are no whole bytes")
    return (*shape[:-1], shape[-1] // 2), (*(s // 2 for s in strides[:-1]), strides[-1])


def _view(bases: _Bases, which: int, kind: torch.dtype, name: str, row: tuple[Any, ...]) -> torch.Tensor:
    shape, strides, offset = row[4 : 4 + row[3]], row[12 : 12 + row[3]], row[22] - bases.begin(which, row[20])
    base = bases.typed(which, row[20], kind)
    if row[23] == 0:
        return _empty(kind, row, base.device)
    if row[2] == dtypes.F4:
        shape, strides = _halve(name, shape, strides)
    if offset % kind.itemsize:
        raise errors.Invalid(f"{name} begins at byte {row[22]}, in the middle of an element")
    return base.as_strided(shape, strides, offset // kind.itemsize)


def _build_plain(manifest: Manifest, bases: _Bases, sets: bytes) -> dict[str, torch.Tensor]:
    names, kinds = manifest.names, dtypes.torch_types()
    rows = list(manifest.rows())
    made: dict[str, torch.Tensor] = {}
    for which, name, row in zip(sets, names, rows):
        if row[2] not in kinds:
            continue
        owner, at = rows[row[24]], row[24]
        same = which == sets[at] and owner[2:21] == row[2:21] and owner[22] == row[22]
        if row[21] & ALIAS and same and names[at] in made:
            made[name] = made[names[at]]
        else:
            made[name] = _view(bases, which, kinds[row[2]], name, row)
    return made


def build(model: int, manifest: Manifest, copies: Copies | None = None) -> dict[str, torch.Tensor]:
    """All tensors of types that this torch knows, in the order of the manifest. An alias with its owner's very view is
    the owner's tensor object."""
    fast, bases = _fast(), _Bases(model, manifest, copies)
    sets = bytes(len(manifest)) if copies is None else copies.sets
    return _build_plain(manifest, bases, sets) if fast is None else _build_fast(fast, model, manifest, bases, sets)
