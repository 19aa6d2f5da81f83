"""What a manifest says, read from its bytes (ipc-cache-manifest(5)) in as few steps as possible.

A Manifest is a copy of the bytes that the C library has checked (seals, checksum, every tensor's bounds): it outlives the
model it came with. Everything is decoded when it is asked for.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import dtypes, errors

PARAMETER, BUFFER, ALIAS = 1, 2, 4
HIDDEN = "ipc-cache.storage/"  # begins names of what only owns bytes for its aliases, see publication.py

_HEADER = struct.Struct("<8sHHIQQII16sQQIIIIIIQQ")
_SECTIONS_AT = 112
_SECTION = struct.Struct("<QII")
_NAMES = ("fields", "segments", "tensors", "index", "sources", "blocks", "attributes", "strings", "data")
_FIELD = struct.Struct("<4I")
_SEGMENT = struct.Struct("<2IQ4I16s128x")
_TENSOR = struct.Struct("<4I16QIIQQII")
# Where an entry of the tensor table has them, in bytes.
DTYPE_AT, SEGMENT_AT, _FLAGS_AT, _OFFSET_AT, _NBYTES_AT = 8, 144, 148, 152, 160
_SOURCE = struct.Struct("<2I6QII16s")
_ATTRIBUTE = struct.Struct("<4IQQ")


@dataclass(frozen=True)
class TensorEntry:
    """One tensor as the manifest describes it. strides: in elements; offset and nbytes: in its segment."""

    name: str
    dtype: str  # as safetensors calls it: "BF16"
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    segment: int
    offset: int
    nbytes: int
    flags: int  # PARAMETER, BUFFER, ALIAS
    alias_of: str | None  # the tensor whose bytes these are

    @property
    def is_parameter(self) -> bool:
        return bool(self.flags & PARAMETER)

    @property
    def is_buffer(self) -> bool:
        return bool(self.flags & BUFFER)


@dataclass(frozen=True)
class Segment:
    device: str  # "host", or a GPU's UUID
    nbytes: int
    hash: str | None  # 32 hexadecimal digits


@dataclass(frozen=True)
class Source:
    name: str
    device: int
    inode: int
    nbytes: int
    mtime_ns: int
    ctime_ns: int
    stat_ns: int
    hash: str | None


@dataclass(frozen=True)
class Attribute:
    name: str
    type: str
    data: bytes

    def value(self) -> Any:
        """Decoded where it is JSON, else the bytes. Raises Invalid for what says that it is JSON and is not."""
        if self.type != "application/json":
            return self.data
        try:
            return json.loads(self.data)
        except (ValueError, RecursionError) as error:
            raise errors.Invalid(
                f"attribute {self.name} of the manifest is no JSON that can be read: {error}"
            ) from None


class Manifest:
    """name, key, key_id, generation, created_ns, owner_uid, publisher_pid, nbytes (of all segments), segments, tensors,
    sources, attributes. `source_state` says how the source files compared: "unchecked", "same", "verified"."""

    def __init__(self, raw: bytes, name: str, key_id: str, source_state: str) -> None:
        head = _HEADER.unpack_from(raw)
        if head[0] != b"IPCCMNF\n" or head[1] != 1:
            raise errors.Invalid(f"the manifest is of format {head[1]}, which this package does not read")
        self.raw = raw
        self.name = name
        self.key_id = key_id
        self.source_state = source_state
        self.generation: int = head[9]
        self.created_ns: int = head[10]
        self.owner_uid: int = head[11]
        self.publisher_pid: int = head[12]
        self._sections = {n: _SECTION.unpack_from(raw, _SECTIONS_AT + 16 * i) for i, n in enumerate(_NAMES)}
        begin, _, count = self._sections["strings"]
        self._strings = raw[begin : begin + count]

    def __repr__(self) -> str:
        return f"<Manifest {self.name!r} generation {self.generation}: {len(self)} tensors, {self.nbytes} bytes>"

    def __len__(self) -> int:
        return int(self._sections["tensors"][2])

    def _text(self, offset: int, length: int) -> str:
        return self._strings[offset : offset + length].decode("utf-8", "surrogateescape")

    def _entries(self, section: str, layout: struct.Struct) -> Iterator[tuple[Any, ...]]:
        """Entries may be longer than this reader knows: step by what the section says."""
        begin, entry_bytes, count = self._sections[section]
        if entry_bytes < layout.size:
            raise errors.Invalid(f"the manifest's {section} have {entry_bytes} bytes each, not {layout.size}")
        if entry_bytes == layout.size:
            return layout.iter_unpack(memoryview(self.raw)[begin : begin + entry_bytes * count])
        return (layout.unpack_from(self.raw, begin + i * entry_bytes) for i in range(count))

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The tensor table as it is: name offset and length, dtype, rank, 8 of shape, 8 of strides, segment, flags,
        offset, bytes, alias_of, reserved."""
        return self._entries("tensors", _TENSOR)

    def column(self, at: int) -> memoryview:
        """A 32-bit field of all tensors, by its place in the entry in bytes; its numbers are little-endian, as the machines
        are that this package runs on."""
        begin, entry_bytes, count = self._sections["tensors"]
        words = memoryview(self.raw)[begin : begin + entry_bytes * count].cast("I")
        return words[at // 4 :: entry_bytes // 4]

    @functools.cached_property
    def names(self) -> list[str]:
        """The tensors' names in the order of the table, by segment and offset."""
        begins, lengths = self.column(0).tolist(), self.column(4).tolist()
        if not begins:
            return []
        ends = [begin + length for begin, length in zip(begins, lengths)]
        # As the builder lays them out: one after the other, with a NUL between them.
        if begins[1:] == [end + 1 for end in ends[:-1]]:
            block = self._strings[begins[0] : ends[-1]].decode("utf-8", "surrogateescape").split("\0")
            if len(block) == len(begins):
                return block
        return [self._text(begin, length) for begin, length in zip(begins, lengths)]

    @functools.cached_property
    def flags(self) -> list[int]:
        """The tensors' flags in the order of `names`, without making an entry for each."""
        return self.column(_FLAGS_AT).tolist()

    def _long_column(self, at: int) -> list[int]:
        return [low | high << 32 for low, high in zip(self.column(at), self.column(at + 4))]

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The tensors' bytes in the order of `names`."""
        return self._long_column(_NBYTES_AT)

    @functools.cached_property
    def offsets(self) -> list[int]:
        """Where in their segments they begin, in the same order."""
        return self._long_column(_OFFSET_AT)

    @functools.cached_property
    def tensors(self) -> list[TensorEntry]:
        names = self.names
        return [
            TensorEntry(
                name, dtypes.NAMES[row[2]], row[4 : 4 + row[3]], row[12 : 12 + row[3]], row[20], row[22], row[23],
                row[21], names[row[24]] if row[21] & ALIAS else None,
            )
            for name, row in zip(names, self.rows())
        ]  # fmt: skip

    @functools.cached_property
    def key(self) -> dict[str, str]:
        return {self._text(*row[:2]): self._text(*row[2:]) for row in self._entries("fields", _FIELD)}

    @functools.cached_property
    def segments(self) -> list[Segment]:
        return [
            Segment(self._text(row[0], row[1]), row[2], row[7].hex() if row[6] else None)
            for row in self._entries("segments", _SEGMENT)
        ]

    @property
    def nbytes(self) -> int:
        return sum(segment.nbytes for segment in self.segments)

    @functools.cached_property
    def sources(self) -> list[Source]:
        return [
            Source(
                self._text(row[0], row[1]), row[2], row[3], row[4], row[5], row[6], row[7],
                row[10].hex() if row[8] else None,
            )
            for row in self._entries("sources", _SOURCE)
        ]  # fmt: skip

    @functools.cached_property
    def attributes(self) -> dict[str, Attribute]:
        begin, _, _ = self._sections["data"]
        found = {}
        for row in self._entries("attributes", _ATTRIBUTE):
            name = self._text(row[0], row[1])
            data = self.raw[begin + row[4] : begin + row[4] + row[5]]
            found[name] = Attribute(name, self._text(row[2], row[3]), data)
        return found
