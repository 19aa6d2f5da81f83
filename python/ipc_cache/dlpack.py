"""DLPack capsules over an attached model, for numpy, jax and other frameworks; and numpy arrays.

The C library makes the tensor, and its deleter is C: a consumer may drop it from any thread, also while Python ends. The
capsule around it owns it until a consumer takes it, which renames the capsule; its destructor is C too.
"""

from __future__ import annotations

import ctypes as c
from typing import TYPE_CHECKING, Any

from . import _library, dtypes, errors
from ._library import byref, call
from .manifest import TensorEntry

if TYPE_CHECKING:
    from .weights import Weights

CPU = 1

# An object of our own: others set other types on the one that ctypes.pythonapi has.
_new = c.PYFUNCTYPE(c.py_object, c.c_void_p, c.c_char_p, c.c_void_p)(("PyCapsule_New", c.pythonapi))

# A capsule keeps a pointer to its name, and may outlive this module when Python ends.
_NAMES = {False: c.c_char_p(b"dltensor"), True: c.c_char_p(b"dltensor_versioned")}
c.PYFUNCTYPE(None, c.py_object)(("Py_IncRef", c.pythonapi))(_NAMES)


def _make(model: int, tensor: _library.Tensor, versioned: bool) -> Any:
    managed = c.c_void_p()
    call("ipcc_dlpack", model, byref(tensor), versioned, byref(managed))
    destructor = c.cast(_library.library().ipcc_capsule_drop, c.c_void_p)
    return _new(managed, _NAMES[versioned], destructor)


def capsule(model: int, entry: TensorEntry, versioned: bool = True) -> Any:
    """A capsule "dltensor_versioned" (DLPack 1.1, marked read-only unless it is private), or "dltensor"."""
    rank = len(entry.shape)
    tensor = _library.Tensor(dtype=dtypes.NUMBERS[entry.dtype], rank=rank, segment=entry.segment, offset=entry.offset)
    tensor.shape[:rank] = entry.shape
    tensor.strides[:rank] = entry.strides
    return _make(model, tensor, versioned)


def segment_capsule(model: int, segment: int, nbytes: int, offset: int = 0) -> Any:
    """Bytes of a segment as a capsule "dltensor" of uint8, which every framework takes."""
    tensor = _library.Tensor(dtype=dtypes.U8, rank=1, segment=segment, offset=offset)
    tensor.shape[0], tensor.strides[0] = nbytes, 1
    return _make(model, tensor, False)


def device(model: int, segment: int) -> tuple[int, int]:
    """A segment's device as DLPack says it: (kind, number)."""
    kind, number = c.c_int(), c.c_int()
    call("ipcc_dlpack_device", model, segment, byref(kind), byref(number))
    return kind.value, number.value


class Exporter:
    """What a framework's from_dlpack() takes: one tensor of open weights, as often as it is asked for."""

    def __init__(self, weights: Weights, entry: TensorEntry) -> None:
        self._weights, self._entry = weights, entry

    def __dlpack_device__(self) -> tuple[int, int]:
        with self._weights.held() as model:
            return device(model, self._entry.segment)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if copy or (dl_device is not None and dl_device != self.__dlpack_device__()):
            raise BufferError("ipc_cache shares memory; it does not copy")
        with self._weights.held() as model:
            return capsule(model, self._entry, max_version is not None and max_version[0] >= 1)


def to_numpy(weights: Weights, entry: TensorEntry) -> Any:
    """A numpy array over a tensor in host memory; read-only unless it is private."""
    import numpy

    exporter = Exporter(weights, entry)
    if exporter.__dlpack_device__()[0] != CPU:
        raise errors.Usage(f"{entry.name} is in a GPU's memory, which numpy cannot read; use torch, and copy")
    try:
        array = numpy.from_dlpack(exporter)
    except (BufferError, RuntimeError, TypeError) as reason:
        raise errors.Usage(f"{entry.name}: numpy does not take {entry.dtype} ({reason}); use torch") from reason
    if not weights.private:
        array.flags.writeable = False
    return array
