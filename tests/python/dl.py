"""A consumer of DLPack capsules without any framework: reads what a capsule says, and drops it as a framework would."""

import ctypes as c

_get_pointer = c.PYFUNCTYPE(c.c_void_p, c.py_object, c.c_char_p)(("PyCapsule_GetPointer", c.pythonapi))
_get_name = c.PYFUNCTYPE(c.c_char_p, c.py_object)(("PyCapsule_GetName", c.pythonapi))
_set_name = c.PYFUNCTYPE(c.c_int, c.py_object, c.c_char_p)(("PyCapsule_SetName", c.pythonapi))

_USED = c.c_char_p(b"used_dltensor")


class _Tensor(c.Structure):
    _fields_ = [
        ("data", c.c_void_p), ("device_type", c.c_int32), ("device_number", c.c_int32), ("rank", c.c_int32),
        ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16), ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64),
    ]  # fmt: skip


_DELETER = c.CFUNCTYPE(None, c.c_void_p)


class _Plain(c.Structure):
    _fields_ = [("tensor", _Tensor), ("context", c.c_void_p), ("deleter", _DELETER)]


class _Versioned(c.Structure):
    _fields_ = [
        ("major", c.c_uint32), ("minor", c.c_uint32), ("context", c.c_void_p), ("deleter", _DELETER),
        ("flags", c.c_uint64), ("tensor", _Tensor),
    ]  # fmt: skip


class Taken:
    """What a capsule held, owned by us until drop()."""

    def __init__(self, capsule):
        name = _get_name(capsule)
        kind = {b"dltensor": _Plain, b"dltensor_versioned": _Versioned}[name]
        self.address = _get_pointer(capsule, name)
        self.managed = kind.from_address(self.address)
        _set_name(capsule, _USED)
        tensor = self.managed.tensor
        self.versioned = kind is _Versioned
        self.read_only = self.versioned and bool(self.managed.flags & 1)
        self.data = tensor.data
        self.device = (tensor.device_type, tensor.device_number)
        self.type = (tensor.code, tensor.bits, tensor.lanes)
        self.shape = tuple(tensor.shape[i] for i in range(tensor.rank))
        self.strides = tuple(tensor.strides[i] for i in range(tensor.rank))
        assert tensor.byte_offset == 0

    def read(self, nbytes):
        return c.string_at(self.data, nbytes)

    def drop(self):
        self.managed.deleter(self.address)
