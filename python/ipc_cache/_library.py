"""libipc_cache.so through ctypes: where it is, whether it fits, and what its functions take (broker/client/ipc_cache.h).

Looked for where $IPC_CACHE_LIBRARY says, else inside this package, else where the system looks. The structures mirror the
header; nothing else in the package knows their layout.
"""

from __future__ import annotations

import ctypes as c
import functools
import os
from typing import Any

from . import DISTRIBUTION, __version__, errors

_FOLDER = os.path.dirname(os.path.abspath(__file__))
SONAME = f"libipc_cache.so.{__version__.split('.')[0]}"

pointer = c.c_void_p
byref = c.byref


class ErrorStruct(c.Structure):
    _fields_ = [
        ("code", c.c_int), ("sys_errno", c.c_int), ("field", c.c_char * 64), ("expected", c.c_char * 256),
        ("got", c.c_char * 256), ("message", c.c_char * 1024),
    ]  # fmt: skip


class Field(c.Structure):
    _fields_ = [("name", c.c_char_p), ("value", c.c_char_p)]


class ClientOptions(c.Structure):
    _fields_ = [("dir", c.c_char_p), ("timeout_ms", c.c_int), ("trust_uid", c.c_uint32), ("trust_uid_set", c.c_bool)]


class AttachOptions(c.Structure):
    _fields_ = [
        ("model", c.c_char_p), ("fields", c.POINTER(Field)), ("field_count", c.c_uint32), ("exact", c.c_bool),
        ("wait_ms", c.c_int), ("sources", c.c_char_p), ("verify", c.c_int),
    ]  # fmt: skip


class ModelFacts(c.Structure):
    _fields_ = [
        ("name", c.c_char_p), ("key_id", c.c_char * 33), ("kept", c.c_bool), ("id", c.c_uint64), ("generation", c.c_uint64),
        ("created_ns", c.c_uint64), ("owner_uid", c.c_uint32), ("publisher_pid", c.c_int32), ("bytes", c.c_uint64),
        ("segments", c.c_uint32), ("tensors", c.c_uint32), ("fields", c.c_uint32), ("sources", c.c_uint32),
        ("attributes", c.c_uint32), ("source_state", c.c_int), ("manifest", c.c_void_p), ("manifest_bytes", c.c_uint64),
    ]  # fmt: skip


class Tensor(c.Structure):
    _fields_ = [
        ("name", c.c_char_p), ("dtype", c.c_uint32), ("rank", c.c_uint32), ("shape", c.c_uint64 * 8),
        ("strides", c.c_uint64 * 8), ("segment", c.c_uint32), ("flags", c.c_uint32), ("offset", c.c_uint64),
        ("bytes", c.c_uint64), ("alias_of", c.c_uint32),
    ]  # fmt: skip


class Source(c.Structure):
    _fields_ = [
        ("name", c.c_char_p), ("device", c.c_uint64), ("inode", c.c_uint64), ("bytes", c.c_uint64),
        ("mtime_ns", c.c_uint64), ("ctime_ns", c.c_uint64), ("stat_ns", c.c_uint64), ("hashed", c.c_uint32),
        ("hash", c.c_uint8 * 16),
    ]  # fmt: skip


class Attribute(c.Structure):
    _fields_ = [("name", c.c_char_p), ("type", c.c_char_p), ("data", c.c_char_p), ("bytes", c.c_uint64)]


class Views(c.Structure):
    _fields_ = [
        ("view", c.c_void_p), ("discard", c.c_void_p), ("capsule", c.c_void_p), ("text", c.c_void_p),
        ("set", c.c_void_p), ("bases", c.c_void_p), ("begins", c.c_void_p), ("sets", c.c_char_p),
        ("list", c.py_object), ("names", c.py_object), ("places", c.c_void_p), ("made", c.c_uint32),
    ]  # fmt: skip


VIEW_DTYPES = 32
VIEW_NONE = 2**32 - 1


class PublishOptions(c.Structure):
    _fields_ = [
        ("name", c.c_char_p), ("fields", c.POINTER(Field)), ("field_count", c.c_uint32), ("device", c.c_char_p),
        ("segment_bytes", c.POINTER(c.c_uint64)), ("segment_count", c.c_uint32), ("visibility", c.c_int),
        ("visible_gid", c.c_uint32), ("wait_ms", c.c_int), ("replace", c.c_bool), ("overwritten", c.c_bool),
        ("keep", c.c_bool), ("create_later", c.c_bool),
    ]  # fmt: skip


class Holder(c.Structure):
    _fields_ = [("pid", c.c_int32), ("uid", c.c_uint32), ("since_ns", c.c_uint64)]


class Listing(c.Structure):
    _fields_ = [
        ("id", c.c_uint64), ("generation", c.c_uint64), ("state", c.c_int), ("kept", c.c_bool), ("name", c.c_char_p),
        ("key_id", c.c_char * 33), ("owner_uid", c.c_uint32), ("publisher_pid", c.c_int32), ("visibility", c.c_int),
        ("visible_gid", c.c_uint32), ("created_ns", c.c_uint64), ("bytes", c.c_uint64), ("segments", c.c_uint32),
        ("tensors", c.c_uint32), ("field_count", c.c_uint32), ("fields", c.POINTER(Field)), ("leases", c.c_uint32),
        ("holder_count", c.c_uint32), ("holders", c.POINTER(Holder)),
    ]  # fmt: skip


class List(c.Structure):
    _fields_ = [("count", c.c_uint32), ("models", c.POINTER(Listing))]


class Stat(c.Structure):
    _fields_ = [
        ("instance", c.c_uint8 * 16), ("pid", c.c_int32), ("uid", c.c_uint32), ("version", c.c_char * 32),
        ("uptime_ns", c.c_uint64), ("connections", c.c_uint64), ("models", c.c_uint64), ("loading", c.c_uint64),
        ("leases", c.c_uint64), ("bytes", c.c_uint64), ("fds", c.c_uint64), ("fd_limit", c.c_uint64),
        ("accepted", c.c_uint64), ("refused", c.c_uint64), ("attaches", c.c_uint64), ("mismatches", c.c_uint64),
        ("commits", c.c_uint64), ("evictions", c.c_uint64),
    ]  # fmt: skip


_ERROR = c.POINTER(ErrorStruct)
_OUT = c.POINTER(c.c_void_p)
_INT, _U32, _U64, _TEXT = c.c_int, c.c_uint32, c.c_uint64, c.c_char_p

# name: (result, arguments). A result of _CODE is an error's code: the last argument is the error then.
_CODE = _INT
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "ipcc_dtype_name": (_TEXT, [_U32]),
    "ipcc_connect": (_CODE, [_OUT, c.POINTER(ClientOptions), _ERROR]),
    "ipcc_close": (None, [pointer]),
    "ipcc_cancel": (None, [pointer]),
    "ipcc_fd": (_INT, [pointer]),
    "ipcc_device": (_CODE, [_TEXT, c.c_char_p, _ERROR]),
    "ipcc_attach": (_CODE, [pointer, c.POINTER(AttachOptions), _OUT, _ERROR]),
    "ipcc_map": (_CODE, [pointer, c.c_uint, _ERROR]),
    "ipcc_suspend": (_CODE, [pointer, _ERROR]),
    "ipcc_resume": (_CODE, [pointer, _ERROR]),
    "ipcc_read": (_CODE, [pointer, _U32, _U64, pointer, _U64, _ERROR]),
    "ipcc_faults": (_CODE, [c.c_bool, _ERROR]),
    "ipcc_fault_watch": (_CODE, [pointer, _ERROR]),
    "ipcc_detach": (_CODE, [pointer, _ERROR]),
    "ipcc_lease_state": (_INT, [pointer]),
    "ipcc_model_free": (None, [pointer]),
    "ipcc_model_facts": (None, [pointer, c.POINTER(ModelFacts)]),
    "ipcc_capsule_drop": (None, [pointer]),
    "ipcc_views": (_CODE, [pointer, c.POINTER(Views), _ERROR]),
    "ipcc_segment_address": (pointer, [pointer, _U32]),
    "ipcc_verify_segment": (_CODE, [pointer, _U32, _ERROR]),
    "ipcc_dlpack": (_CODE, [pointer, c.POINTER(Tensor), c.c_bool, _OUT, _ERROR]),
    "ipcc_dlpack_device": (_CODE, [pointer, _U32, c.POINTER(_INT), c.POINTER(_INT), _ERROR]),
    "ipcc_publish_begin": (_CODE, [pointer, c.POINTER(PublishOptions), _OUT, _ERROR]),
    "ipcc_publish_create": (_CODE, [pointer, _U32, _ERROR]),
    "ipcc_publish_address": (pointer, [pointer, _U32]),
    "ipcc_publish_write": (_CODE, [pointer, _U32, _U64, pointer, _U64, _ERROR]),
    "ipcc_publish_tensor": (_CODE, [pointer, c.POINTER(Tensor), _ERROR]),
    "ipcc_publish_source": (_CODE, [pointer, c.POINTER(Source), _ERROR]),
    "ipcc_publish_attribute": (_CODE, [pointer, c.POINTER(Attribute), _ERROR]),
    "ipcc_publish_commit": (_CODE, [pointer, c.POINTER(_U64), c.POINTER(_U64), _ERROR]),
    "ipcc_publish_free": (None, [pointer]),
    "ipcc_source_file": (_CODE, [_TEXT, c.c_bool, c.POINTER(Source), c.POINTER(_U64), _ERROR]),
    "ipcc_list": (_CODE, [pointer, c.POINTER(c.POINTER(List)), _ERROR]),
    "ipcc_list_free": (None, [c.POINTER(List)]),
    "ipcc_evict": (_CODE, [pointer, _TEXT, c.POINTER(Field), _U32, _INT, _INT, c.POINTER(c.c_bool), _ERROR]),
    "ipcc_ping": (_CODE, [pointer, _ERROR]),
    "ipcc_stat": (_CODE, [pointer, c.POINTER(Stat), _ERROR]),
}


def path() -> str:
    """The library that is, or would be, loaded: a path, or a bare name for the system to look up."""
    chosen = os.environ.get("IPC_CACHE_LIBRARY")
    if chosen:
        return chosen
    own = os.path.join(_FOLDER, "lib", "libipc_cache.so")
    return own if os.path.exists(own) else SONAME


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _check_version(found: str, where: str) -> None:
    have, want = _numbers(found), _numbers(__version__)
    if have[:1] == want[:1] and have >= want:
        return
    older = "an older" if have < want else "a newer"
    raise errors.OldLibrary(
        f"{where} is version {found}, {older} one than this package {DISTRIBUTION} {__version__} works with; install both "
        f"in the same version, or let IPC_CACHE_LIBRARY name the right library"
    )


def _declare(library: Any, version: str, where: str) -> None:
    for name, (result, arguments) in _PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise errors.OldLibrary(
                f"{where} calls itself version {version} but has no function {name}, which this package {DISTRIBUTION} "
                f"{__version__} needs; install both in the same version"
            ) from None
        function.restype, function.argtypes = result, arguments


@functools.cache
def library() -> Any:
    """The loaded library, its functions declared. Raises OldLibrary when it is missing or does not fit."""
    where = path()
    try:
        loaded = c.CDLL(where)
        loaded.ipcc_version.restype = c.c_char_p
        version = loaded.ipcc_version().decode()
    except (OSError, AttributeError) as reason:
        raise errors.OldLibrary(
            f"the C library cannot be used: {reason}; install the package from a wheel, or let IPC_CACHE_LIBRARY name "
            f"{SONAME}"
        ) from reason
    _check_version(version, where)
    _declare(loaded, version, where)
    return loaded


@functools.cache
def holding_lock(name: str) -> Any:
    """A function of the library that is called with Python's lock held, since it makes Python objects."""
    result, arguments = _PROTOTYPES[name]
    library()
    return c.PYFUNCTYPE(result, *arguments)((name, c.PyDLL(path())))


def text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def check(code: int, error: ErrorStruct) -> None:
    """Raises what a function returned and stored, unless that is success."""
    if code == 0:
        return
    raise errors.make(
        code, text(error.message), error.sys_errno, text(error.field), text(error.expected), text(error.got)
    )


def call(name: str, *arguments: Any) -> None:
    """Calls a function whose last argument is the error, and raises that."""
    error = ErrorStruct()
    check(getattr(library(), name)(*arguments, c.byref(error)), error)


def encode(value: str | os.PathLike[str] | None) -> bytes | None:
    """A C string; a NUL inside would cut it silently."""
    if value is None:
        return None
    encoded = os.fsencode(value)
    if b"\0" in encoded:
        raise errors.Usage(f"{value!r} has a NUL character")
    return encoded


def fields(key: dict[str, str]) -> tuple[Any, int]:
    """The array of fields for a key, and their number."""
    array = (Field * max(len(key), 1))()
    for i, (name, value) in enumerate(key.items()):
        if not isinstance(name, str) or not isinstance(value, str):
            raise errors.Usage(f"a key's names and values are strings: {name!r}: {value!r}")
        array[i].name, array[i].value = encode(name), encode(value)
    return array, len(key)


def milliseconds(seconds: float) -> int:
    """As the library counts: -1 for ever."""
    if seconds != seconds or seconds < 0:
        raise errors.Usage(f"{seconds!r} seconds; math.inf waits for ever")
    return -1 if seconds == float("inf") else min(int(seconds * 1000), 2**31 - 1)
