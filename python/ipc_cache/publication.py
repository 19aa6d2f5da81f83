"""publish(): tensors of this process become a resident model.

Tensors are laid out in their order, each at a multiple of 256 bytes, in segments of at most SEGMENT_BYTES. What shares
memory here shares it there: tensors whose bytes overlap form a group, which is copied once; one that covers the group owns
it, and the others are its aliases. Bytes are written straight from where a tensor lies, one tensor at a time.
"""

from __future__ import annotations

import ctypes as c
import grp
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from . import _library, errors
from ._library import byref, call, encode, milliseconds
from .client import VISIBILITIES, Connection, StrPath, device_name
from .content import Content, content_of, give_back
from .manifest import ALIAS, HIDDEN

HOST = "host"
ALIGNMENT = 256
SEGMENT_BYTES = 2 << 30
# On a GPU: few enough that mapping them costs next to nothing, small enough that a model moves in place, one segment more
# than itself at its peak.
GPU_SEGMENTS = 10
GPU_SEGMENT_BYTES = (256 << 20, 4 << 30)
# What is smaller goes last there, the smallest at the very end: large tensors, whose sizes are mostly multiples of the
# granularity, then fill it, and small ones are near to each other.
GPU_SMALL_BYTES = (1 << 20, 4 << 10)
MAX_SEGMENTS = 252


@dataclass(frozen=True)
class Published:
    """A model that is resident now, independent of this process. id: of this broker process."""

    id: int
    generation: int
    key: dict[str, str] = field(hash=False)
    nbytes: int  # of all segments


@dataclass
class _Group:
    """Tensors whose bytes overlap: [begin, end) of one piece of memory."""

    content: Content  # of which the bytes are copied
    begin: int
    end: int
    members: list[str]
    segment: int = -1
    offset: int = -1

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


def _group(contents: Mapping[str, Content]) -> list[_Group]:
    """Groups in the order in which their first members were given."""
    order = {name: i for i, name in enumerate(contents)}
    by_memory: dict[object, list[str]] = {}
    for name, content in contents.items():
        by_memory.setdefault(content.memory, []).append(name)
    groups: list[_Group] = []
    for names in by_memory.values():
        current: _Group | None = None
        for name in sorted(names, key=lambda n: (contents[n].begin, -contents[n].end)):
            content = contents[name]
            if current is not None and content.begin < current.end and content.nbytes:
                current.members.append(name)
                current.end = max(current.end, content.end)
            else:
                current = _Group(content, content.begin, content.end, [name])
                groups.append(current)
    for group in groups:
        group.members.sort(key=order.__getitem__)
    return sorted(groups, key=lambda g: order[g.members[0]])


def _place(groups: list[_Group], host: bool = True) -> list[int]:
    """Gives each group its segment and offset; returns the segments' sizes."""
    total = sum(group.nbytes + ALIGNMENT for group in groups)
    least, most = GPU_SEGMENT_BYTES
    limit = SEGMENT_BYTES if host else min(max(total // GPU_SEGMENTS, least), most)
    while total // limit >= MAX_SEGMENTS // 2:
        limit *= 2
    sizes: list[int] = []
    for group in groups:
        begin = -(-sizes[-1] // ALIGNMENT) * ALIGNMENT if sizes else 0
        if not sizes or (sizes[-1] and begin + group.nbytes > limit):
            sizes.append(0)
            begin = 0
        group.segment, group.offset = len(sizes) - 1, begin
        sizes[-1] = begin + group.nbytes
    return [max(size, 1) for size in sizes]


class _Publication:
    """The C library's object, given up unless it was committed."""

    def __init__(self, connection: Connection, wait: float, options: _library.PublishOptions) -> None:
        made = c.c_void_p()
        with connection.lock:
            connection.wait_for(wait, "ipcc_publish_begin", byref(options), byref(made))
        self.pointer = made

    def write(self, segment: int, offset: int, address: int, nbytes: int) -> None:
        call("ipcc_publish_write", self.pointer, segment, offset, address, nbytes)

    def create(self, segment: int) -> None:
        call("ipcc_publish_create", self.pointer, segment)

    def address(self, segment: int) -> int:
        return int(_library.library().ipcc_publish_address(self.pointer, segment))

    def tensor(self, name: str, content: Content, segment: int, offset: int, flags: int = 0, alias_of: int = 0) -> None:
        rank = len(content.shape)
        entry = _library.Tensor(
            name=encode(name), dtype=content.dtype, rank=rank, segment=segment, flags=flags, offset=offset,
            bytes=content.nbytes, alias_of=alias_of,
        )  # fmt: skip
        entry.shape[:rank] = content.shape
        entry.strides[:rank] = content.strides
        call("ipcc_publish_tensor", self.pointer, byref(entry))

    def attribute(self, name: str, kind: bytes, data: bytes) -> None:
        entry = _library.Attribute(encode(name), kind, data, len(data))
        call("ipcc_publish_attribute", self.pointer, byref(entry))

    def commit(self) -> tuple[int, int]:
        identity, generation = c.c_uint64(), c.c_uint64()
        call("ipcc_publish_commit", self.pointer, byref(identity), byref(generation))
        return identity.value, generation.value

    def free(self) -> None:
        _library.library().ipcc_publish_free(self.pointer)


def _owner(group: _Group, contents: Mapping[str, Content], number: int) -> tuple[str, Content]:
    """The member that covers the group, or bytes of our own that nobody sees."""
    for name in group.members:
        content = contents[name]
        if (content.begin, content.end) == (group.begin, group.end):
            return name, content
    content = group.content.bytes_between(group.begin, group.end)
    return f"{HIDDEN}{number}", content


def _describe(
    publication: _Publication, groups: list[_Group], contents: Mapping[str, Content], flags: Mapping[str, int]
) -> None:
    """The tensors of the manifest. An alias names its owner by the place that this gets: entries stay in this order
    where segments and offsets are equal, owners first."""
    added = 0
    for number, group in enumerate(groups):
        owner, content = _owner(group, contents, number)
        owner_at = added
        publication.tensor(owner, content, group.segment, group.offset, flags.get(owner, 0))
        added += 1
        for name in group.members:
            if name == owner:
                continue
            content = contents[name]
            offset = group.offset + content.begin - group.begin
            publication.tensor(name, content, group.segment, offset, flags.get(name, 0) | ALIAS, owner_at)
            added += 1


def _source(path: str, name: str, hashed: bool) -> _library.Source:
    """What the file is now. One that was written a moment ago is waited for, two seconds at most: its times would not
    prove to those who attach that it is still the same."""
    source, unsettled = _library.Source(), c.c_uint64()
    call("ipcc_source_file", encode(path), False, byref(source), byref(unsettled))
    time.sleep(unsettled.value / 1e9)
    call("ipcc_source_file", encode(path), hashed, byref(source), byref(unsettled))
    source.name = encode(name)
    return source


def _sources(sources: StrPath | Iterable[StrPath] | None, hashed: bool) -> list[_library.Source]:
    """Of a folder: its safetensors files and their index, as attaching compares them."""
    if sources is None:
        return []
    if not isinstance(sources, (str, os.PathLike)):
        return [_source(os.fspath(p), os.path.basename(os.fspath(p)), hashed) for p in sources]
    root = os.fspath(sources)
    if not os.path.isdir(root):
        return [_source(root, os.path.basename(root), hashed)]
    names = [n for n in sorted(os.listdir(root)) if n.endswith((".safetensors", ".safetensors.index.json"))]
    if not names:
        raise errors.NotFound(f"{root} has no safetensors files; name the files that the model was made of")
    return [_source(os.path.join(root, name), name, hashed) for name in names]


def _encoded(name: str, value: object) -> tuple[str, bytes, bytes]:
    """An attribute's name, type and content."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return name, b"application/octet-stream", bytes(value)
    try:
        return name, b"application/json", json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    except (TypeError, ValueError) as reason:
        raise errors.Usage(f"attribute {name}: neither bytes nor what JSON can say: {reason}") from None


def visibility_of(text: str) -> tuple[int, int]:
    """ "owner", "all" or "group:NAME" as the library's number, and the group's."""
    kind, _, group = text.partition(":")
    if kind not in VISIBILITIES or (kind == "group") != bool(group):
        raise errors.Usage(f"visibility {text!r} is none of owner, group:NAME, all")
    if kind != "group":
        return VISIBILITIES.index(kind), 0
    try:
        gid = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError:
        raise errors.Usage(f"there is no group {group!r}") from None
    return VISIBILITIES.index(kind), gid


def _copy(
    publication: _Publication,
    groups: list[_Group],
    device: str,
    consumed: MutableMapping[str, Any] | None,
    create: bool,
) -> None:
    """create: a segment is made when the first group of it is due, and what was freed until then is there for it."""
    created = -1
    for group in groups:
        if create and group.segment > created:
            give_back()
            publication.create(group.segment)
            created = group.segment
        group.content.copy_to(publication, group.segment, group.offset, group.begin, group.end, device)
        group.content.release()
        if consumed is not None:
            for name in group.members:
                consumed.pop(name, None)


def publish(
    tensors: Mapping[str, Any],
    key: Mapping[str, str],
    *,
    name: str | None = None,
    device: str = "host",
    attributes: Mapping[str, object] | None = None,
    sources: StrPath | Iterable[StrPath] | None = None,
    hash_sources: bool = True,
    flags: Mapping[str, int] | None = None,
    replace: bool = False,
    wait: float = 0,
    visibility: str = "owner",
    consume: bool = False,
    before_commit: Callable[[], None] | None = None,
    dir: StrPath | None = None,
    timeout: float = 10,
) -> Published:
    """Publishes tensors as a model, which then is resident and independent of this process.

    tensors: torch tensors, of the host or of GPUs, or numpy arrays, by name; any strides; ties and other sharing of memory
    are kept. key: what decides the bytes; `device` and `layout` ("tensors") are added where they are missing. name: what
    people call it. device: where it shall live: "host", "cuda:0", a GPU's UUID. attributes: bytes, or what JSON can say.
    sources: the files it was made of (a folder, or paths), so that attach() can tell whether the caller's are the same;
    hash_sources: with their content hashes, for which they are read. flags: manifest.PARAMETER or BUFFER by name.
    replace: a resident model of the same key takes no new attach and goes with its last lease; otherwise Exists.
    wait: seconds to wait for another publisher of the same key, else Busy. visibility: "owner", "group:NAME", "all".
    consume: takes each tensor out of `tensors` once it is copied, so that memory peaks at one tensor more than the
    model; on a GPU at one segment more, a tenth. before_commit: called when all is copied and the sources are looked at;
    what it raises is raised, and nothing is published. Raises NoMemory, before anything is allocated unless it consumes,
    Refused, Usage.
    """
    if consume and not isinstance(tensors, MutableMapping):
        raise errors.Usage("consume needs tensors that can be taken out, as of a dict")
    contents = {tensor_name: content_of(tensor_name, tensor) for tensor_name, tensor in tensors.items()}
    place = device_name(device)
    full_key = {"device": place, "layout": "tensors", **key}
    groups = _group(contents)
    if consume:  # the groups hold what is still to be copied
        contents = {n: content.without_memory() for n, content in contents.items()}
    if place != HOST:
        groups.sort(key=lambda group: sum(group.nbytes < small for small in GPU_SMALL_BYTES))
    sizes = _place(groups, place == HOST)
    moving = consume and place != HOST
    described = _sources(sources, hash_sources)
    encoded = [_encoded(*attribute) for attribute in (attributes or {}).items()]
    fields, field_count = _library.fields(full_key)
    segment_bytes = (c.c_uint64 * max(len(sizes), 1))(*sizes)
    visible, gid = visibility_of(visibility)
    options = _library.PublishOptions(
        encode(name), fields, field_count, encode(place), segment_bytes, len(sizes), visible, gid, milliseconds(wait),
        replace, create_later=moving,
    )  # fmt: skip
    connection = Connection(dir, timeout, None)
    try:
        publication = _Publication(connection, wait, options)
        try:
            consumed = tensors if consume and isinstance(tensors, MutableMapping) else None
            _copy(publication, groups, place, consumed, moving)
            _describe(publication, groups, contents, flags or {})
            for source in described:
                call("ipcc_publish_source", publication.pointer, byref(source))
            for attribute in encoded:
                publication.attribute(*attribute)
            if before_commit is not None:
                before_commit()
            identity, generation = publication.commit()
        finally:
            publication.free()
    finally:
        connection.close()
    return Published(identity, generation, full_key, sum(sizes))
