"""One process of a user at a time loads for a key; the others wait, and find it published.

The lock is a record lock on a file of the user's own: the kernel says who has it, and frees it when that process ends,
however it ends, and whatever it has forked meanwhile. It does not keep threads of one process apart.
"""

import fcntl
import logging
import math
import os
import stat
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ipc_cache import engine

logger = logging.getLogger("vllm.ipc_cache")

_RETRY_SECONDS = 0.2
_FLOCK = struct.Struct("hhqqi4x")  # the kernel's: type, whence, start, length, pid


class Waited(RuntimeError):
    """Somebody else loads, and has not published in the time that the option `wait` allows."""


class Unlockable(RuntimeError):
    """The file cannot be locked; the message says what to do."""


@contextmanager
def only_one(fields: Mapping[str, str], wait: float) -> Iterator[None]:
    """Within it nobody else publishes for the key `fields`. Says once whom it waits for. wait: seconds, 0 and infinity for
    as long as it takes. Raises Waited and Unlockable."""
    fd = _open(fields)
    try:
        _acquire(fd, fields["model"], wait or math.inf)
        yield
    finally:
        os.close(fd)


def _open(fields: Mapping[str, str]) -> int:
    # Nobody else can take the name in the user's own folder; where there is none, taking it is told.
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = folder if os.path.isdir(folder) and os.access(folder, os.W_OK) else tempfile.gettempdir()
    path = os.path.join(folder, f"ipc_cache_publish_{os.getuid()}_{engine.digest(dict(fields))[:32]}.lock")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as reason:
        raise Unlockable(f"ipc_cache: {path} cannot be locked ({reason}); remove it, or set TMPDIR") from reason
    found = os.fstat(fd)
    if found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise Unlockable(f"ipc_cache: {path} belongs to somebody else; remove it, or set TMPDIR")
    return fd


def _acquire(fd: int, model: str, wait: float) -> None:
    deadline = time.monotonic() + wait
    said = False
    while True:
        try:
            return fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # held; which of the two is up to the system
            pass
        if not said:
            logger.info("ipc_cache: %s loads %s already; waiting until it is published", _holder(fd), model)
            said = True
        if time.monotonic() >= deadline:
            raise Waited(
                f"ipc_cache: {_holder(fd)} loads {model} and has not published it within {wait} s (the option "
                '"wait"); start again when it has, or with a longer wait'
            )
        time.sleep(_RETRY_SECONDS)


def _holder(fd: int) -> str:
    """Who has the lock, as far as the kernel tells: not across containers, and not once it is free."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return f"process {pid}" if kind != fcntl.F_UNLCK and pid > 0 else "another process"
