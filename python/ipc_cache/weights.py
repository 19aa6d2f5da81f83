"""attach() and Weights: a resident model's tensors by name, and the lease on it.

Memory and lease are two things. The memory is the C library's model: its last user unmaps it, and every tensor is one
through the DLPack tensor under it. The lease is a connection; it only tells the broker that the model is in use. So tensors
stay valid after detach(), close() and the end of this object, in any order and in forked children.
"""

from __future__ import annotations

import ctypes as c
import functools
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _library, errors, faults
from ._library import byref, call, encode, milliseconds
from .client import Connection, StrPath, with_device
from .manifest import HIDDEN, Manifest, TensorEntry

if TYPE_CHECKING:
    import torch

    from .dlpack import Exporter
    from .tensors import Copies

VERIFY = {"stat": 0, "hash": 1, "none": 2}
SOURCE_STATES = ("unchecked", "same", "verified")
LIVE: weakref.WeakSet[Weights] = weakref.WeakSet()  # for ipc_cache.faults
LEASES = ("held", "evicted", "ended", "lost")
MAP_PRIVATE = 1


def _alone() -> None:
    """In a forked child: what other threads of the parent were doing nobody does here."""
    for weights in list(LIVE):
        weights._lock, weights._users = threading.RLock(), 0


os.register_at_fork(after_in_child=_alone)


def _release(model: int, connection: Connection, owned: bool) -> None:
    """The end of a Weights. In a forked child the lease is the parent's: only our copy of the connection is closed."""
    if connection.inherited:
        connection.close()
        _library.library().ipcc_model_free(model)
        return
    with connection.held():
        _library.library().ipcc_model_free(model)
    if owned:
        connection.close()


class Weights(Mapping[str, "torch.Tensor"]):
    """The tensors of an attached model, by name in the manifest's order; a context manager that holds the lease.

    They are read-only by page protection (a write is a SIGSEGV, see ipc_cache.faults), unless `private`: then writable
    copy-on-write, the shared bytes stay as they are. Tensors that share bytes in the model share them here, and the
    same view under two names is one tensor object. Made by attach(); torch is imported when the first tensor is asked for.
    """

    def __init__(self, connection: Connection, model: int, private: bool, owned: bool) -> None:
        self._connection = connection
        self._model = model
        self._lock = threading.RLock()  # for a moment only, but for making the views
        self._users, self._closing = 0, False
        self._tensors: dict[str, torch.Tensor] | None = None
        self.private = private
        self.map_seconds = 0.0  # what mapping took, of the time that attaching took
        self._end = weakref.finalize(self, _release, model, connection, owned)
        facts = _library.ModelFacts()
        _library.library().ipcc_model_facts(model, byref(facts))
        self.manifest = Manifest(
            c.string_at(facts.manifest, facts.manifest_bytes), _library.text(facts.name),
            _library.text(facts.key_id), SOURCE_STATES[facts.source_state],
        )  # fmt: skip
        self.kept = bool(facts.kept)

    # ---- the mapping

    def _views(self) -> dict[str, torch.Tensor]:
        with self._lock:
            if self._tensors is None:
                self._tensors = self._new_views()
            return self._tensors

    def _new_views(self, copies: Copies | None = None) -> dict[str, torch.Tensor]:
        """Views that are the caller's alone, of all tensors whose types this torch knows; see tensors.build()."""
        from .tensors import build

        with self.held() as model:
            return build(model, self.manifest, copies)

    def __getitem__(self, name: str) -> torch.Tensor:
        found = self._views().get(name)
        if found is not None:
            return found
        if name in self:
            entry = self.entry(name)
            raise errors.Usage(
                f"{name}: torch {_torch_version()} has no type for {entry.dtype}; weights.raw({name!r}) gives its bytes"
            )
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return name in self._order

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    # Comparing tensors by == gives tensors: two Weights are equal when they are the same.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        state = f"lease {self.lease}" if self.open else "closed"
        return f"<Weights {self.manifest.name!r}: {len(self)} tensors, {self.nbytes} bytes, {state}>"

    # ---- what they are

    @functools.cached_property
    def _order(self) -> dict[str, int]:
        """The tensors' numbers in the manifest, by name."""
        return {name: i for i, name in enumerate(self.manifest.names) if not name.startswith(HIDDEN)}

    def entry(self, name: str) -> TensorEntry:
        """What the manifest says of a tensor; KeyError."""
        return self.manifest.tensors[self._order[name]]

    @property
    def nbytes(self) -> int:
        """Of all segments together."""
        return self.manifest.nbytes

    @property
    def device(self) -> torch.device:
        """Where the tensors are, as torch counts."""
        from .tensors import device_of

        with self.held() as model:
            return device_of(model, self.manifest)

    def attribute(self, name: str) -> Any:
        """An attribute of the manifest, decoded where it is JSON, else bytes; KeyError."""
        return self.manifest.attributes[name].value()

    def raw(self, name: str) -> torch.Tensor:
        """The bytes of a tensor, 1-D uint8; for types that torch does not know."""
        from .tensors import bytes_of

        with self.held() as model:
            return bytes_of(model, self.entry(name))

    def dlpack(self, name: str) -> Exporter:
        """A tensor for any framework's from_dlpack(): jax.dlpack.from_dlpack(weights.dlpack(name)). It is marked
        read-only where the framework's version of DLPack can say so; what was taken lives on after these weights."""
        from .dlpack import Exporter

        return Exporter(self, self.entry(name))

    def numpy(self, name: str) -> Any:
        """A tensor in host memory as a numpy array without a copy; Usage where numpy does not know its type (BF16)."""
        from .dlpack import to_numpy

        return to_numpy(self, self.entry(name))

    # ---- the lease

    @property
    def open(self) -> bool:
        """Not closed yet."""
        return self._end.alive and not self._closing

    @contextmanager
    def held(self) -> Iterator[int]:
        """The C library's model, for this package; it is freed after the last of these has ended, whoever closes. Usage
        after close()."""
        with self._lock:
            if not self.open:
                raise errors.Usage("these weights are closed")
            self._users += 1
        try:
            yield self._model
        finally:
            with self._lock:
                self._users -= 1
                if self._closing and self._users == 0:
                    self._end()

    @property
    def lease(self) -> str:
        """ "held"; "evicted": the broker dropped the model by force, the tensors stay valid, let go of them soon;
        "ended": detached, or the broker is gone, the tensors stay valid. ("lost" is for kept
        models, which attach() refuses.)"""
        if not self.open or self._connection.inherited:
            return "held" if self.open else "ended"
        with self._connection.lock:  # with which the model is freed
            return LEASES[_library.library().ipcc_lease_state(self._model)] if self._end.alive else "ended"

    def detach(self) -> None:
        """Ends the lease; tensors and manifest stay valid. Harmless when repeated."""
        if not self.open:
            return
        if self._connection.inherited:
            self._connection.close()
            return
        with self._connection.lock:  # with which the model is freed
            if self._end.alive:
                call("ipcc_detach", self._model)

    def close(self) -> None:
        """Ends the lease and lets go of the memory, which is unmapped with the last tensor that somebody else holds."""
        with self._lock:
            self._tensors = None
            self._closing = True
            if self._users == 0:
                self._end()

    def __enter__(self) -> Weights:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- GPU memory

    def suspend(self) -> None:
        """Unmaps GPU memory and keeps the addresses, so that tensors (and graphs) are valid again after resume(), and
        must not be used before. The lease stays. Refused on the host."""
        with self.held() as model:
            call("ipcc_suspend", model)

    def resume(self) -> None:
        """Maps the same memory at the same addresses again."""
        with self.held() as model:
            call("ipcc_resume", model)

    def verify(self) -> None:
        """Hashes all segments again; Mismatch names the first damaged block."""
        for i in range(len(self.manifest.segments)):
            with self.held() as model:
                call("ipcc_verify_segment", model, i)


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def attach_over(
    connection: Connection,
    model: StrPath | None,
    *,
    owned: bool,
    device: str | None = None,
    key: Mapping[str, str] | None = None,
    exact: bool = False,
    wait: float = 0,
    verify: str = "stat",
    sources: StrPath | None = None,
    private: bool = False,
) -> Weights:
    """attach() over a connection; `owned`: it ends with the weights."""
    if verify not in VERIFY:
        raise errors.Usage(f"verify {verify!r} is none of {', '.join(VERIFY)}")
    array, count = _library.fields(with_device(key, device))
    options = _library.AttachOptions(
        encode(model), array, count, exact, milliseconds(wait), encode(sources), VERIFY[verify]
    )
    made = c.c_void_p()
    with connection.lock:
        connection.wait_for(wait, "ipcc_attach", byref(options), byref(made))
    assert made.value is not None
    weights = Weights(connection, made.value, private, owned)
    if weights.kept:
        weights.close()
        raise errors.Refused(
            "its memory is that of the process which keeps it and ends with the lease, which tensors may outlive; copy the "
            "model, with ipc-cache copy, and attach to the copy"
        )
    try:
        begin = time.perf_counter()
        call("ipcc_map", made.value, MAP_PRIVATE if private else 0)
        weights.map_seconds = time.perf_counter() - begin
        LIVE.add(weights)
        if faults.enabled:
            call("ipcc_fault_watch", made.value)
    except BaseException:
        weights.close()
        raise
    return weights


def attach(
    model: StrPath | None = None,
    *,
    device: str | None = None,
    key: Mapping[str, str] | None = None,
    exact: bool = False,
    wait: float = 0,
    verify: str = "stat",
    sources: StrPath | None = None,
    private: bool = False,
    dir: StrPath | None = None,
    timeout: float = 10,
) -> Weights:
    """Attaches to a resident model and maps it: no byte is copied.

    model: a path (compared by its real path), the name given at load, or the first digits of the key's id.
    device: which of several copies: "host", "cuda:0", a GPU's UUID. key: fields that must match; exact: and no others.
    wait: seconds to wait for a model that is loading or not there yet; math.inf: for ever.
    verify, sources: how the caller's files (default: `model`, if it is a path) are compared with those that the model was
    made of, before anything is mapped: "stat" by their metadata; "hash" by content where metadata cannot tell; "none".
    private: map copy-on-write, writable; host memory only.
    dir, timeout: the broker's directory, and seconds that any one request may take.
    Raises NoBroker, NotFound (says what is resident), Busy (it is loading), Mismatch, Unknown, Timeout, Refused.
    """
    connection = Connection(dir, timeout, None)
    try:
        return attach_over(
            connection, model, owned=True, device=device, key=key, exact=exact, wait=wait, verify=verify,
            sources=sources, private=private,
        )  # fmt: skip
    except BaseException:
        connection.close()
        raise
