"""Talking to the broker: a connection, what it holds, and removing it.

Invariants: a connection's pointer is used under its lock only, and is None once closed; a process forked from the one that
connected never talks on it, it only closes its copy (ipc_cache.h, "Fork").
"""

from __future__ import annotations

import ctypes as c
import os
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _library, errors
from ._library import byref, call, encode, milliseconds

if TYPE_CHECKING:
    from .weights import Weights

StrPath = str | os.PathLike[str]

STATES = {1: "loading", 2: "ready", 3: "draining"}
VISIBILITIES = ("owner", "group", "all")
EVICT_MODES = {"idle": 0, "drain": 1, "force": 2}

_PATIENCE = 0.1  # seconds that a signal may be kept waiting


@dataclass(frozen=True)
class Holder:
    pid: int
    uid: int
    since_ns: int


@dataclass(frozen=True)
class Model:
    """A model that the broker holds. nbytes: promised ones while it is loading; kept: its publisher holds the memory, and
    it ends with that process; leases: all, of which `holders` are the oldest."""

    id: int
    name: str
    key: dict[str, str] = field(hash=False)
    key_id: str
    state: str  # "loading", "ready", "draining"
    generation: int
    nbytes: int
    segments: int
    tensors: int
    owner_uid: int
    publisher_pid: int
    kept: bool
    visibility: str
    visible_gid: int
    created_ns: int
    leases: int
    holders: list[Holder] = field(hash=False)


def _close_pointer(state: list[int | None]) -> None:
    pointer, state[0] = state[0], None
    if pointer is not None:
        _library.library().ipcc_close(pointer)


class Connection:
    """One connection of the C library, with the lock that its users take."""

    def __init__(self, dir: StrPath | None, timeout: float, trust_uid: int | None) -> None:
        options = _library.ClientOptions(
            encode(dir), max(milliseconds(timeout), -1) or 1, trust_uid or 0, trust_uid is not None
        )
        made = c.c_void_p()
        call("ipcc_connect", byref(made), byref(options))
        self.lock = threading.RLock()
        self.pid = os.getpid()
        self._worker: threading.Thread | None = None
        self._state: list[int | None] = [made.value]
        self._swap = threading.Lock()
        self._end = weakref.finalize(self, _close_pointer, self._state)

    @property
    def inherited(self) -> bool:
        """Are we a forked child of the process that connected?"""
        return os.getpid() != self.pid

    @property
    def open(self) -> bool:
        return self._state[0] is not None

    def pointer(self) -> int:
        """For a call, with the lock held."""
        if self.inherited:
            raise errors.Usage("this connection belongs to the parent process; connect again in the child")
        pointer = self._state[0]
        if pointer is None:
            raise errors.Usage("this connection is closed")
        return pointer

    def held(self) -> AbstractContextManager[object]:
        """The lock; nothing in the thread that its holder waits for (wait_for): what garbage that is collected there needs
        it for may be done."""
        return nullcontext() if threading.current_thread() is self._worker else self.lock

    def wait_for(self, wait: float, name: str, *arguments: Any) -> None:
        """call(name, pointer, *arguments), which may wait that many seconds; with the lock held.

        The library goes on waiting when a signal comes, so a long wait is another thread's: Ctrl-C then cancels it, and
        with it this connection.
        """
        pointer = self.pointer()
        if wait < _PATIENCE or threading.current_thread() is not threading.main_thread():
            call(name, pointer, *arguments)
            return
        failure: list[BaseException] = []

        def run() -> None:
            try:
                call(name, pointer, *arguments)
            except BaseException as error:
                failure.append(error)

        self._worker = thread = threading.Thread(target=run, name="ipc-cache-wait", daemon=True)
        thread.start()
        try:
            thread.join()
        except BaseException:
            self.cancel()
            thread.join()
            raise
        finally:
            self._worker = None
        if failure:
            raise failure[0]

    def cancel(self) -> None:
        with self._swap:
            if self._state[0] is not None:
                _library.library().ipcc_cancel(self._state[0])

    def close(self) -> None:
        if self.inherited:  # its locks may be held by threads that the fork left behind
            self._end()
            return
        self.cancel()
        with self.lock, self._swap:
            self._end()


class Client:
    """A connection to the broker; a context manager.

    dir: the broker's directory (default: $IPC_CACHE_DIR, else /run/ipc-cache, else /tmp/vllm_ipc_cache_uid_<UID>).
    timeout: how long any one request may take, in seconds, waiting that was asked for not counted; math.inf: no limit.
    trust_uid: trust a broker of this user besides the caller's own and root's.
    A client may be used by several threads; requests wait for each other. Raises NoBroker, Refused.
    """

    def __init__(self, dir: StrPath | None = None, timeout: float = 10, trust_uid: int | None = None) -> None:
        self.connection = Connection(dir, timeout, trust_uid)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection, and with it the lease of what was attached through it; tensors stay valid."""
        self.connection.close()

    def cancel(self) -> None:
        """From any thread: the request in flight and all later ones raise Canceled."""
        self.connection.cancel()

    def attach(self, model: StrPath | None = None, **options: Any) -> Weights:
        """As ipc_cache.attach(), over this connection, which carries one lease at a time."""
        from .weights import attach_over

        return attach_over(self.connection, model, owned=False, **options)

    def models(self) -> list[Model]:
        """What is resident and visible to this user, by id."""
        with self.connection.lock:
            found = c.POINTER(_library.List)()
            call("ipcc_list", self.connection.pointer(), byref(found))
        try:
            return [_model(found[0].models[i]) for i in range(found[0].count)]
        finally:
            _library.library().ipcc_list_free(found)

    def evict(
        self,
        model: StrPath | None = None,
        *,
        key: Mapping[str, str] | None = None,
        device: str | None = None,
        mode: str = "idle",
        wait: float = 0,
    ) -> bool:
        """Removes a model; True when it is gone, False when it goes with its last lease.

        mode: "idle" raises Busy while it is leased; "drain" takes no new attach, and waits up to `wait` seconds for the
        last lease; "force" drops it at once, its holders keep what they have mapped.
        """
        if mode not in EVICT_MODES:
            raise errors.Usage(f"mode {mode!r} is none of {', '.join(EVICT_MODES)}")
        array, count = _library.fields(with_device(key, device))
        draining = c.c_bool()
        with self.connection.lock:
            self.connection.wait_for(
                wait, "ipcc_evict", encode(model), array, count, EVICT_MODES[mode], milliseconds(wait), byref(draining)
            )
        return not draining.value

    def ping(self) -> float:
        """Seconds that one round trip took."""
        with self.connection.lock:
            pointer, begin = self.connection.pointer(), time.perf_counter()
            call("ipcc_ping", pointer)
            return time.perf_counter() - begin

    def stat(self) -> dict[str, Any]:
        """What the broker holds and has done; the names are those of struct ipcc_stat."""
        stat = _library.Stat()
        with self.connection.lock:
            call("ipcc_stat", self.connection.pointer(), byref(stat))
        values = {field[0]: getattr(stat, field[0]) for field in _library.Stat._fields_}
        values["version"] = _library.text(stat.version)
        values["instance"] = bytes(stat.instance).hex()
        return values


def _model(entry: Any) -> Model:
    text = _library.text
    return Model(
        id=entry.id,
        name=text(entry.name),
        key={text(entry.fields[i].name): text(entry.fields[i].value) for i in range(entry.field_count)},
        key_id=text(entry.key_id),
        state=STATES.get(entry.state, str(entry.state)),
        generation=entry.generation,
        nbytes=entry.bytes,
        segments=entry.segments,
        tensors=entry.tensors,
        owner_uid=entry.owner_uid,
        publisher_pid=entry.publisher_pid,
        kept=entry.kept,
        visibility=VISIBILITIES[entry.visibility],
        visible_gid=entry.visible_gid,
        created_ns=entry.created_ns,
        leases=entry.leases,
        holders=[
            Holder(entry.holders[i].pid, entry.holders[i].uid, entry.holders[i].since_ns)
            for i in range(entry.holder_count)
        ],
    )


def device_name(device: str) -> str:
    """What "host", "cpu", "cuda:0" or the beginning of a UUID means: "host" or a GPU's UUID. NotFound says which there
    are."""
    if device == "cpu":
        device = "host"
    name = c.create_string_buffer(64)
    call("ipcc_device", encode(device), name)
    return _library.text(name.value)


def with_device(key: Mapping[str, str] | None, device: str | None) -> dict[str, str]:
    """The key with the device's field, unless no device is asked for."""
    fields = dict(key or {})
    if device is not None:
        fields["device"] = device_name(str(device))
    return fields


def models(*, dir: StrPath | None = None, timeout: float = 10) -> list[Model]:
    """What is resident and visible to this user."""
    with Client(dir, timeout) as client:
        return client.models()


def evict(
    model: StrPath | None = None,
    *,
    key: Mapping[str, str] | None = None,
    device: str | None = None,
    mode: str = "idle",
    wait: float = 0,
    dir: StrPath | None = None,
    timeout: float = 10,
) -> bool:
    """Removes a model; see Client.evict()."""
    with Client(dir, timeout) as client:
        return client.evict(model, key=key, device=device, mode=mode, wait=wait)
