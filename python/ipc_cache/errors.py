"""Exceptions, one for each code of the C library (enum ipcc_code in manifest/error.h), and a few of Python's own."""

from __future__ import annotations

from collections.abc import Sequence

from ._guard import WrongPackage

__all__ = [
    "Busy", "Canceled", "Error", "Exists", "Failed", "Invalid", "MetaLeft", "Mismatch", "NoBroker", "NoMemory",
    "NotFound", "OldLibrary", "ProtocolError", "Refused", "Timeout", "Unknown", "Usage", "WrongPackage", "make",
]  # fmt: skip


class Error(Exception):
    """What every failed call raises. `str()` says what was wrong, where, and what to do.

    code: the number of the C library, as the exit status of the command as far as that goes; errno: of the system call
    that failed, or 0.
    """

    code = 1

    def __init__(self, message: str, errno: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.errno = errno


class Failed(Error):
    """The system refused something; `errno` says what."""


class Usage(Error):
    """The arguments make no sense."""

    code = 2


class NotFound(Error):
    """No such model, file, tensor or device."""

    code = 3


class Mismatch(Error):
    """Found, but a field differs: what the caller asked for is `expected`, what is resident is `got`."""

    code = 4

    def __init__(self, message: str, errno: int = 0, field: str = "", expected: str = "", got: str = "") -> None:
        super().__init__(message, errno)
        self.field = field
        self.expected = expected
        self.got = got

    def __reduce__(self) -> tuple[type, tuple[str, int, str, str, str]]:
        return type(self), (self.message, self.errno, self.field, self.expected, self.got)


class MetaLeft(Mismatch):
    """Something on `meta` is left after binding; `names` are the paths at which it was found."""

    def __init__(self, message: str, names: list[str]) -> None:
        super().__init__(message, 0, "tensors", "bound", "on meta")
        self.names = names

    def __reduce__(self) -> tuple[type, tuple]:  # type: ignore[type-arg]
        return type(self), (self.message, self.names)


class Invalid(Error):
    """Malformed or damaged data."""

    code = 5


class Refused(Error):
    """A rule, a limit or a policy forbids it."""

    code = 6


class NoBroker(Error):
    """Nobody listens, or not the one that we trust."""

    code = 7


class Busy(Error):
    """Somebody else is at it: another publisher, or lease holders."""

    code = 8


class Timeout(Error):
    """It took too long."""

    code = 9


class Canceled(Error):
    """`Client.cancel()` was called."""

    code = 10


class NoMemory(Error):
    """Too little memory for what was asked, found before allocating it."""

    code = 11


class Exists(Error):
    """The model is resident already."""

    code = 12


class ProtocolError(Error):
    """The broker broke the protocol; the connection is over."""

    code = 13


class Unknown(Error):
    """Whether the source files are the same cannot be told by their metadata: compare by content, `verify="hash"`."""

    code = 14


class OldLibrary(Error, ImportError):
    """libipc_cache.so is missing, or not of a version that this package works with."""


_BY_CODE: dict[int, type[Error]] = {
    kind.code: kind
    for kind in (
        Failed, Usage, NotFound, Invalid, Refused, NoBroker, Busy, Timeout, Canceled, NoMemory, Exists,
        ProtocolError, Unknown,
    )
}  # fmt: skip


def make(code: int, message: str, errno: int = 0, field: str = "", expected: str = "", got: str = "") -> Error:
    """The exception for a code of the C library."""
    if code == Mismatch.code:
        return Mismatch(message, errno, field, expected, got)
    return _BY_CODE.get(code, Failed)(message, errno)


def listed(names: Sequence[str], most: int = 20) -> str:
    """Names for a message: the first `most` of them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
