"""What publishing needs to know of a tensor, whatever library it comes from.

`memory` names the piece of memory (two contents of equal memory may overlap), [begin, end) its bytes there. Neither torch
nor numpy is imported: what is passed in belongs to one that is imported already.
"""

from __future__ import annotations

import ctypes as c
import functools
import sys
from dataclasses import dataclass, replace
from typing import Any, Protocol

from . import dtypes, errors
from .client import device_name

MAX_RANK = 8
# What is brought from a GPU to the host in one piece.
PIECE_BYTES = 64 << 20


class Sink(Protocol):
    """The publication that is filled."""

    def write(self, segment: int, offset: int, address: int, nbytes: int) -> None: ...
    def address(self, segment: int) -> int: ...


@dataclass
class Content:
    """dtype: number in the manifest; shape and strides in elements; holder: the tensor whose memory it is."""

    dtype: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    memory: object
    begin: int
    end: int
    holder: Any

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    def bytes_between(self, begin: int, end: int) -> Content:
        """Bytes of the same memory, as a tensor of them."""
        return replace(self, dtype=dtypes.U8, shape=(end - begin,), strides=(1,), begin=begin, end=end)

    def without_memory(self) -> Content:
        return replace(self, holder=None)

    def release(self) -> None:
        self.holder = None

    def copy_to(self, sink: Sink, segment: int, offset: int, begin: int, end: int, device: str) -> None:
        """Writes bytes [begin, end) of this memory to `offset` of a segment on `device`."""
        raise NotImplementedError


class _Host(Content):
    """memory: any object that is one piece of memory; begin and end: addresses."""

    def copy_to(self, sink: Sink, segment: int, offset: int, begin: int, end: int, device: str) -> None:
        if end > begin:
            sink.write(segment, offset, begin, end - begin)


class _Gpu(Content):
    """A torch tensor in a GPU's memory; holder: its storage as a uint8 tensor, begin and end: bytes in it."""

    def copy_to(self, sink: Sink, segment: int, offset: int, begin: int, end: int, device: str) -> None:
        import torch

        if end == begin:
            return
        # Over another GPU's memory torch would make a copy, and fill that: such bytes go through the host.
        if _name_of(str(self.holder.device)) == device:
            to = torch.as_tensor(_GpuMemory(sink.address(segment) + offset, end - begin), device=self.holder.device)
            to.copy_(self.holder[begin:end])
            torch.cuda.synchronize(self.holder.device)
            return
        for at in range(begin, end, PIECE_BYTES):
            piece = self.holder[at : min(at + PIECE_BYTES, end)].cpu()
            sink.write(segment, offset + at - begin, piece.data_ptr(), piece.numel())


@functools.cache
def _name_of(torch_device: str) -> str:
    """What the library calls it; "" where torch has a name of its own for it."""
    try:
        return device_name(torch_device)
    except errors.NotFound:
        return ""


class _GpuMemory:
    """Memory that is not torch's, for torch."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3, "strides": None,
        }  # fmt: skip


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last one; 0 if there is none."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides as the manifest has them: 0 where there are no elements."""
    if 0 in shape:
        return (0,) * len(shape)
    strides, size = [], 1
    for dimension in reversed(shape):
        strides.append(size)
        size *= dimension
    return tuple(reversed(strides))


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _check_rank(name: str, rank: int) -> None:
    if rank > MAX_RANK:
        raise errors.Usage(f"{name} has {rank} dimensions; a manifest describes at most {MAX_RANK}")


def _torch_content(name: str, tensor: Any) -> Content:
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        what = "on meta" if tensor.is_meta else f"of layout {tensor.layout}"
        raise errors.Usage(f"{name} is {what}; only plain tensors with memory can be published")
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    number = dtypes.numbers_by_torch().get(tensor.dtype)
    if number is None:
        raise errors.Usage(f"{name} is of {tensor.dtype}, which safetensors, and so the manifest, does not know")
    tensor = tensor.detach()
    shape, strides, itemsize = tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype.itemsize
    if _extent(shape, strides) > _count(shape) and not _shares(tensor):
        tensor = tensor.contiguous()
        strides = tuple(tensor.stride())
    if 0 in shape:
        strides = _dense(shape)
    begin = tensor.storage_offset() * itemsize
    end = begin + _extent(shape, strides) * itemsize
    _check_rank(name, len(shape))
    if number == dtypes.F4:
        shape, strides = _doubled(name, shape, strides)
    storage = tensor.untyped_storage()
    if tensor.device.type == "cpu":
        # Storages of one piece of memory may be different objects: the addresses are what counts.
        base = storage.data_ptr()
        return _Host(number, shape, strides, "host", base + begin, base + end, tensor)
    if tensor.device.type != "cuda":
        raise errors.Usage(f"{name} is on {tensor.device}; only memory of the host and of GPUs can be published")
    held = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))
    return _Gpu(number, shape, strides, (str(tensor.device), storage.data_ptr()), begin, end, held)


def _shares(tensor: Any) -> bool:
    """Is it a view with gaps between its elements, which others may fill? Small gaps are copied along."""
    return bool(tensor.untyped_storage().nbytes() <= 2 * tensor.numel() * tensor.itemsize)


def _doubled(name: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """One of torch's packed elements is two of the manifest's, along the last dimension."""
    if not shape or (0 not in shape and strides[-1] != 1):
        raise errors.Usage(f"{name}: packed 4-bit elements must lie side by side along the last dimension")
    return (*shape[:-1], 2 * shape[-1]), (*(2 * s for s in strides[:-1]), strides[-1])


def _numpy_content(name: str, array: Any) -> Content:
    number = dtypes.number_of_numpy(array.dtype)
    if number is None:
        raise errors.Usage(f"{name} is of numpy's {array.dtype}, which safetensors, and so the manifest, does not know")
    _check_rank(name, array.ndim)
    itemsize, shape = array.dtype.itemsize, tuple(array.shape)
    whole = array.size and all(s % itemsize == 0 and s >= 0 for s in array.strides)
    strides = tuple(s // itemsize for s in array.strides)
    if not whole or _extent(shape, strides) > array.size:
        array = array.copy(order="C")
        strides = _dense(shape)
    begin = int(array.__array_interface__["data"][0])
    return _Host(number, shape, strides, "host", begin, begin + _extent(shape, strides) * itemsize, array)


# Formats of the struct module, but for integers, which their size tells.
_FORMATS = {"?": "BOOL", "e": "F16", "f": "F32", "d": "F64", "Zf": "C64"}


def _buffer_content(name: str, tensor: Any) -> Content:
    """Of anything that gives its memory, as bytes, array.array and memoryview do."""
    view = memoryview(tensor)
    kind = _FORMATS.get(view.format) or {"b": "I", "h": "I", "i": "I", "l": "I", "q": "I"}.get(view.format.lower(), "")
    if kind == "I":
        kind = f"{'I' if view.format.islower() else 'U'}{8 * view.itemsize}"
    if kind not in dtypes.NUMBERS or not view.c_contiguous:
        raise errors.Usage(f"{name}: a buffer of format {view.format!r} that is contiguous is needed, not this one")
    _check_rank(name, view.ndim)
    shape = tuple(view.shape or ())
    if view.readonly:  # ctypes finds the address of what can be written only
        view = memoryview(bytearray(view.tobytes()))
    held = (c.c_char * view.nbytes).from_buffer(view) if view.nbytes else (c.c_char * 0)()
    begin = c.addressof(held)
    return _Host(dtypes.NUMBERS[kind], shape, _dense(shape), "host", begin, begin + view.nbytes, held)


def content_of(name: str, tensor: Any) -> Content:
    """Of a torch tensor, a numpy array, or anything that gives its memory; Usage names what cannot be published."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _torch_content(name, tensor)
    if numpy is not None and isinstance(tensor, (numpy.ndarray, numpy.generic)):
        return _numpy_content(name, numpy.asarray(tensor))
    try:
        return _buffer_content(name, tensor)
    except TypeError:
        raise errors.Usage(
            f"{name} is a {type(tensor).__name__}; give torch tensors, numpy arrays, or what gives its memory as a buffer"
        ) from None


def give_back() -> None:
    """Lets the driver have what torch keeps of freed GPU memory, for those who allocate without torch."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
