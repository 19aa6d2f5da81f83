"""The manifest format a second time, from ipc-cache-manifest(5): an oracle that shares no code with the C side.

`Draft` builds the bytes of a manifest, `Manifest` reads them and checks what a reader should check. `reseal` puts a correct
checksum into bytes that a test has damaged on purpose.
"""
import struct

import numpy
import xxhash

MAGIC = b"IPCCMNF\n"
ALIGNMENT = 64
HEADER_BYTES = 256
BLOCK_BYTES = 4 << 20
CHECKSUM_AT = 24
TENSOR_ALIGNMENT = 256

SECTIONS = ("fields", "segments", "tensors", "index", "sources", "blocks", "attributes", "strings", "data")

DTYPES = {
    "BOOL": (1, 8), "F4": (2, 4), "F6_E2M3": (3, 6), "F6_E3M2": (4, 6), "U8": (5, 8), "I8": (6, 8),
    "F8_E5M2": (7, 8), "F8_E4M3": (8, 8), "F8_E8M0": (9, 8), "F8_E4M3FNUZ": (10, 8), "F8_E5M2FNUZ": (11, 8),
    "I16": (12, 16), "U16": (13, 16), "F16": (14, 16), "BF16": (15, 16), "I32": (16, 32), "U32": (17, 32),
    "F32": (18, 32), "C64": (19, 64), "F64": (20, 64), "I64": (21, 64), "U64": (22, 64),
}  # name: (number, bits)
DTYPE_NAMES = {number: name for name, (number, _) in DTYPES.items()}

PARAMETER, BUFFER, ALIAS = 1, 2, 4

STRING = [("offset", "<u4"), ("bytes", "<u4")]
FIELD = numpy.dtype([("name", STRING), ("value", STRING)])
SEGMENT = numpy.dtype([
    ("device", STRING), ("bytes", "<u8"), ("handle_kind", "<u4"), ("handle_bytes", "<u4"), ("first_block", "<u4"),
    ("block_count", "<u4"), ("hash", "V16"), ("handle", "V128")])
TENSOR = numpy.dtype([
    ("name", STRING), ("dtype", "<u4"), ("rank", "<u4"), ("shape", "<u8", 8), ("strides", "<u8", 8), ("segment", "<u4"),
    ("flags", "<u4"), ("offset", "<u8"), ("bytes", "<u8"), ("alias_of", "<u4"), ("reserved", "<u4")])
SOURCE = numpy.dtype([
    ("name", STRING), ("device", "<u8"), ("inode", "<u8"), ("bytes", "<u8"), ("mtime_ns", "<u8"), ("ctime_ns", "<u8"),
    ("stat_ns", "<u8"), ("hashed", "<u4"), ("reserved", "<u4"), ("hash", "V16")])
ATTRIBUTE = numpy.dtype([("name", STRING), ("type", STRING), ("offset", "<u8"), ("bytes", "<u8")])
ENTRY_BYTES = {"fields": 16, "segments": 176, "tensors": 176, "index": 4, "sources": 80, "blocks": 16, "attributes": 32,
               "strings": 1, "data": 1}
assert (FIELD.itemsize, SEGMENT.itemsize, TENSOR.itemsize, SOURCE.itemsize, ATTRIBUTE.itemsize) == (16, 176, 176, 80, 32)

# magic, major, minor, header_bytes, total_bytes, checksum, compatible, incompatible, instance, generation, created_ns,
# owner_uid, publisher_pid, visibility, visible_gid, name offset and bytes, block_bytes, index_seed
HEADER = struct.Struct("<8sHHIQQII16sQQIIIIIIQQ")
HEADER_NAMES = ("magic", "major", "minor", "header_bytes", "total_bytes", "checksum", "compatible", "incompatible",
                "instance", "generation", "created_ns", "owner_uid", "publisher_pid", "visibility", "visible_gid",
                "name_offset", "name_bytes", "block_bytes", "index_seed")
assert HEADER.size + len(SECTIONS) * 16 == HEADER_BYTES


def checksum(data):
    state = xxhash.xxh3_64()
    state.update(bytes(data[:CHECKSUM_AT]))
    state.update(bytes(8))
    state.update(data[CHECKSUM_AT + 8:])
    return state.intdigest()


def encoded(text):
    return text if isinstance(text, bytes) else text.encode()


def name_hash(name, seed=0):
    return xxhash.xxh3_64_intdigest(encoded(name), seed=seed)


def reseal(data):
    """The same bytes with a checksum that fits them."""
    data = bytearray(data)
    struct.pack_into("<Q", data, CHECKSUM_AT, checksum(data))
    return bytes(data)


def block_hashes(content):
    """XXH3-128 of each block, concatenated."""
    content = memoryview(content)
    return b"".join(xxhash.xxh3_128_digest(content[at:at + BLOCK_BYTES]) for at in range(0, len(content), BLOCK_BYTES))


def content_hash(content):
    return xxhash.xxh3_128_digest(block_hashes(content))


def pack_key(fields):
    """The packed form of a key, as it travels and as it is hashed into the key's id."""
    packed = b""
    for name, value in sorted((name.encode(), value.encode()) for name, value in fields.items()):
        packed += struct.pack("<HH", len(name), len(value)) + name + value
    return packed


def unpack_key(packed):
    fields, at = {}, 0
    while at < len(packed):
        name_bytes, value_bytes = struct.unpack_from("<HH", packed, at)
        at += 4
        fields[packed[at:at + name_bytes].decode()] = packed[at + name_bytes:at + name_bytes + value_bytes].decode()
        at += name_bytes + value_bytes
    return fields


def key_id(fields):
    return xxhash.xxh3_128_hexdigest(pack_key(fields))


def dense_bytes(dtype, shape):
    elements = 1
    for dimension in shape:
        elements *= dimension
    return elements * DTYPES[dtype][1] // 8


def dense_strides(shape):
    strides, stride = [0] * len(shape), 1
    for i in reversed(range(len(shape))):
        strides[i], stride = stride, stride * shape[i]
    return strides if 0 not in shape else [0] * len(shape)


class Draft:
    """A manifest in the making. Tensors must be added in the order of (segment, offset)."""

    def __init__(self, fields, name=""):
        self.fields, self.name = dict(fields), name
        self.segments, self.tensors, self.sources, self.attributes = [], [], [], []
        self.blocks = b""

    def segment(self, size, blocks=b"", device="host", handle_kind=1, handle=b"", handle_bytes=None):
        """`blocks`: the block hashes, or nothing."""
        count = len(blocks) // 16
        digest = xxhash.xxh3_128_digest(blocks) if count else bytes(16)
        first = len(self.blocks) // 16 if count else 0
        handle_bytes = len(handle) if handle_bytes is None else handle_bytes
        self.segments.append((device, size, handle_kind, handle_bytes, first, count, digest, handle))
        self.blocks += blocks
        return self

    def tensor(self, name, dtype, shape, segment, offset, flags=0, alias_of=0, strides=None, size=None):
        self.tensors.append((name, DTYPES[dtype][0], tuple(shape), tuple(strides or dense_strides(shape)), segment, flags,
                             offset, dense_bytes(dtype, shape) if size is None else size, alias_of))
        return self

    def source(self, name, size, digest=None, **numbers):
        self.sources.append((name, size, digest, numbers))
        return self

    def attribute(self, name, kind, data):
        self.attributes.append((name, kind, data))
        return self

    def build(self):
        strings = bytearray()

        def string(text):
            at, content = len(strings), encoded(text)
            strings.extend(content + b"\0")
            return at, len(content)

        name = string(self.name)
        fields = numpy.zeros(len(self.fields), FIELD)
        for entry, (key, value) in zip(fields, sorted((k.encode(), v.encode()) for k, v in self.fields.items())):
            entry["name"], entry["value"] = string(key), string(value)
        segments = numpy.zeros(len(self.segments), SEGMENT)
        for entry, (device, size, kind, handle_bytes, first, count, digest, handle) in zip(segments, self.segments):
            entry["device"], entry["bytes"], entry["handle_kind"] = string(device), size, kind
            entry["handle_bytes"], entry["handle"] = handle_bytes, handle.ljust(128, b"\0")
            entry["first_block"], entry["block_count"], entry["hash"] = first, count, digest
        tensors = self._tensors(string)
        sources = numpy.zeros(len(self.sources), SOURCE)
        for entry, (key, size, digest, numbers) in zip(sources, sorted(self.sources)):
            entry["name"], entry["bytes"] = string(key), size
            entry["hashed"], entry["hash"] = digest is not None, digest or bytes(16)
            for field, value in numbers.items():
                entry[field] = value
        attributes, data = numpy.zeros(len(self.attributes), ATTRIBUTE), b""
        for entry, (key, kind, content) in zip(attributes, sorted(self.attributes)):
            entry["name"], entry["type"] = string(key), string(kind)
            entry["offset"], entry["bytes"] = len(data), len(content)
            data += content
        parts = [fields.tobytes(), segments.tobytes(), tensors.tobytes(), self._index(), sources.tobytes(), self.blocks,
                 attributes.tobytes(), bytes(strings), data]
        return self._assemble(parts, name)

    def _tensors(self, string):
        table = numpy.zeros(len(self.tensors), TENSOR)
        if not self.tensors:
            return table
        names, dtypes, shapes, strides, segments, flags, offsets, sizes, owners = zip(*self.tensors)
        places = numpy.array([string(name) for name in names], "<u4")
        table["name"]["offset"], table["name"]["bytes"] = places[:, 0], places[:, 1]
        table["dtype"], table["rank"] = dtypes, [len(shape) for shape in shapes]
        table["shape"] = [shape + (0,) * (8 - len(shape)) for shape in shapes]
        table["strides"] = [stride + (0,) * (8 - len(stride)) for stride in strides]
        table["segment"], table["flags"], table["offset"] = segments, flags, offsets
        table["bytes"], table["alias_of"] = sizes, owners
        return table

    def _index(self):
        if not self.tensors:
            return b""
        slots = 2
        while slots < 2 * len(self.tensors):
            slots *= 2
        table = [0] * slots
        for number, tensor in enumerate(self.tensors):
            at = name_hash(tensor[0]) & (slots - 1)
            while table[at] != 0:
                at = (at + 1) & (slots - 1)
            table[at] = number + 1
        return numpy.array(table, "<u4").tobytes()

    def _assemble(self, parts, name):
        body, table, end = bytearray(), b"", HEADER_BYTES
        for section, part in zip(SECTIONS, parts):
            offset = -(-end // ALIGNMENT) * ALIGNMENT
            body += bytes(offset - end) + part
            table += struct.pack("<QII", offset, ENTRY_BYTES[section], len(part) // ENTRY_BYTES[section])
            end = offset + len(part)
        header = HEADER.pack(MAGIC, 1, 0, HEADER_BYTES, end, 0, 0, 0, bytes(16), 0, 0, 0, 0, 0, 0, *name, BLOCK_BYTES, 0)
        return reseal(header + table + bytes(body))


class Tensor:
    def __init__(self, number, name, raw):
        rank = int(raw["rank"])
        self.number, self.name, self.dtype = number, name, DTYPE_NAMES[int(raw["dtype"])]
        self.shape = tuple(int(n) for n in raw["shape"][:rank])
        self.strides = tuple(int(n) for n in raw["strides"][:rank])
        self.segment, self.offset, self.bytes = int(raw["segment"]), int(raw["offset"]), int(raw["bytes"])
        self.flags, self.alias_of = int(raw["flags"]), int(raw["alias_of"])


class Manifest:
    """A finished manifest. Raises AssertionError for bytes that no writer may produce."""

    def __init__(self, data):
        self.data = bytes(data)
        self.header = dict(zip(HEADER_NAMES, HEADER.unpack_from(self.data)))
        h = self.header
        assert (h["magic"], h["major"], h["incompatible"]) == (MAGIC, 1, 0)
        assert h["total_bytes"] == len(self.data) and h["checksum"] == checksum(self.data)
        self.sections, end = {}, h["header_bytes"]
        for i, name in enumerate(SECTIONS):
            offset, stride, count = struct.unpack_from("<QII", self.data, HEADER.size + 16 * i)
            assert offset == -(-end // ALIGNMENT) * ALIGNMENT, f"{name} begins at {offset}"
            assert not any(self.data[end:offset]), f"the gap before {name} is not zero"
            assert stride == ENTRY_BYTES[name]
            end = offset + stride * count
            self.sections[name] = memoryview(self.data)[offset:end]
        assert end == len(self.data)
        self.name = self.text((h["name_offset"], h["name_bytes"]))
        self.fields = {self.text(f["name"]): self.text(f["value"]) for f in self._table("fields", FIELD)}
        assert list(self.fields) == sorted(self.fields)
        self.segments = self._table("segments", SEGMENT)
        self.tensors = [Tensor(i, self.text(t["name"]), t) for i, t in enumerate(self._table("tensors", TENSOR))]
        self.sources = {self.text(s["name"]): s for s in self._table("sources", SOURCE)}
        self.attributes = {}
        for a in self._table("attributes", ATTRIBUTE):
            content = bytes(self.sections["data"][int(a["offset"]):int(a["offset"] + a["bytes"])])
            self.attributes[self.text(a["name"])] = (self.text(a["type"]), content)
        self.index = numpy.frombuffer(self.sections["index"], "<u4")

    def _table(self, section, dtype):
        return numpy.frombuffer(self.sections[section], dtype)

    def text(self, place):
        offset, size = int(place[0]), int(place[1])
        strings = self.sections["strings"]
        assert offset + size < len(strings) and strings[offset + size] == 0
        return bytes(strings[offset:offset + size]).decode()

    def find(self, name):
        """Through the hash index, as an engine would."""
        at = name_hash(name, self.header["index_seed"])
        for step in range(128):
            slot = int(self.index[(at + step) & (len(self.index) - 1)])
            if slot == 0:
                return None
            if self.tensors[slot - 1].name == name:
                return self.tensors[slot - 1]
        return None

    def blocks(self, segment):
        raw = self.segments[segment]
        first, count = int(raw["first_block"]), int(raw["block_count"])
        return bytes(self.sections["blocks"][16 * first:16 * (first + count)])
