"""Checkpoints for tests, on disk and published by hand."""
import json
import os
import struct
import subprocess
import time

import numpy

import manifest
import protocol
from manifest import DTYPES, TENSOR_ALIGNMENT, Draft, block_hashes, dense_bytes

HOUR = 3600


def age(path, seconds=HOUR):
    """Files younger than two seconds cannot be told by their metadata: make them older."""
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def noise(size, seed=0):
    return numpy.random.default_rng(seed).bytes(size)


def write_file(path, tensors, metadata=None):
    """tensors: {name: (dtype, shape, bytes)}, in that order. Written without the safetensors package."""
    entries, at = {}, 0
    if metadata:
        entries["__metadata__"] = metadata
    for name, (dtype, shape, content) in tensors.items():
        assert len(content) == dense_bytes(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(content)]}
        at += len(content)
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for _, _, content in tensors.values():
            file.write(content)
    return age(path)


def write_sparse(path, size, name="big"):
    """One tensor of `size` zero bytes that take no place on the disk."""
    header = json.dumps({name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    return age(path)


def read_file(path):
    """{name: (dtype, shape, bytes)} of a safetensors file, by an independent reader."""
    with open(path, "rb") as file:
        content = file.read()
    size = struct.unpack_from("<Q", content)[0]
    data = memoryview(content)[8 + size:]
    return {name: (entry["dtype"], tuple(entry["shape"]), data[entry["data_offsets"][0]:entry["data_offsets"][1]])
            for name, entry in json.loads(content[8:8 + size]).items() if name != "__metadata__"}


def small_tensors(seed=0):
    return {
        "embed.weight": ("F32", (64, 32), noise(64 * 32 * 4, seed)),
        "layer.0.bias": ("F32", (7,), noise(28, seed + 1)),
        "layer.0.weight": ("F16", (5, 7), noise(70, seed + 2)),
        "scale": ("F32", (), noise(4, seed + 3)),
        "empty": ("F32", (0, 3), b""),
    }


def write_small(folder, seed=0, name="model.safetensors"):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    write_file(path, small_tensors(seed), {"format": "pt"})
    return str(folder)


def write_sharded(folder, shards=3, seed=0):
    """A folder with model.safetensors.index.json; {name: (dtype, shape, bytes)} of all shards."""
    os.makedirs(folder, exist_ok=True)
    everything, places = {}, {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        tensors = {f"layer.{i}.{name}": tensor for name, tensor in small_tensors(seed + 10 * i).items()}
        write_file(os.path.join(folder, file), tensors)
        everything.update(tensors)
        places.update({name: file for name in tensors})
    index = os.path.join(folder, "model.safetensors.index.json")
    with open(index, "w") as file:
        json.dump({"metadata": {}, "weight_map": places}, file)
    age(index)
    return everything


def every_dtype():
    """A tensor of every type that there is, some with odd shapes."""
    tensors = {}
    for i, (dtype, (_, bits)) in enumerate(DTYPES.items()):
        shape = (3, 5) if bits >= 8 else (4, 6)
        content = noise(dense_bytes(dtype, shape), i)
        if dtype == "BOOL":
            content = bytes(byte & 1 for byte in content)
        tensors[f"t.{dtype.lower()}"] = (dtype, shape, content)
    return tensors


def minilm():
    """The folder of the real model, fetched into the user's cache at most once; None without a network."""
    tool = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "fetch-model")
    done = subprocess.run([tool], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    folder = done.stdout.strip()
    return folder if done.returncode == 0 and "MiniLM" in folder or folder.endswith("all-minilm-l6-v2") else None


class Handmade:
    """A model that a raw client publishes: `segments` segments of `size` bytes, a few tensors in each."""

    def __init__(self, name="handmade", segments=1, size=8192, seed=0, key=None, hashes=True):
        self.name = name
        self.key = dict(key or {"model": f"/{name}", "device": "host", "layout": "test"})
        self.contents = [noise(size, seed + i) for i in range(segments)]
        self.sizes = [size] * segments
        self.draft = Draft(self.key, name)
        for content in self.contents:
            self.draft.segment(size, block_hashes(content) if hashes else b"")
        for i in range(segments):
            self.draft.tensor(f"s{i}.first", "U8", (min(100, size),), i, 0)
            if size >= 2 * TENSOR_ALIGNMENT:
                self.draft.tensor(f"s{i}.second", "F32", (4, 4), i, TENSOR_ALIGNMENT)

    def begin(self, client, **options):
        return client.begin(self.key, self.sizes, name=self.name, **options)

    def segments(self, client):
        fds = [protocol.sealed(content) for content in self.contents]
        with protocol.closing(*fds):
            client.segments(fds)

    def publish(self, client, **options):
        """id and generation"""
        self.begin(client, **options)
        if self.sizes:
            self.segments(client)
        client.draft(self.draft.build())
        return client.commit()


class Kept:
    """A model that a raw client keeps: handles of no driver, one of `handle_bytes` bytes for each segment."""

    def __init__(self, name="kept", segments=2, size=2 << 20, key=None, handle_bytes=64, device="GPU-0", handles=None):
        self.name = name
        self.key = dict(key or {"model": f"/{name}", "device": device, "layout": "test"})
        self.sizes = [size] * segments
        self.handles = handles or [noise(handle_bytes, 100 + i) for i in range(segments)]
        self.draft = Draft(self.key, name)
        for handle in self.handles:
            self.draft.segment(size, device=device, handle_kind=2, handle=handle)
        for i in range(segments):
            self.draft.tensor(f"s{i}.first", "U8", (100,), i, 0)

    def begin(self, client, flags=protocol.KEPT, **options):
        return client.begin(self.key, self.sizes, name=self.name, flags=flags, **options)

    def publish(self, client, flags=0, **options):
        """id and generation; the client is the keeper from then on"""
        self.begin(client, flags=protocol.KEPT | flags, **options)
        client.draft(self.draft.build())
        return client.commit()


def claimed(broker):
    """A connection that is publishing: the only kind that may send fds at all, where the kernel can tell (Linux 6.16)."""
    client = broker.connect()
    Handmade("surplus", segments=3).begin(client)
    return client


def large_draft(name, key, tensors=100_000, size=4096):
    """A manifest of that many tensors without elements, so that one small segment suffices."""
    draft = Draft(key, name).segment(size)
    draft.tensors = [(f"model.layers.{i}.mlp.experts.weight", DTYPES["F32"][0], (0, 1), (0, 0), 0, 0, 0, 0, 0)
                     for i in range(tensors)]
    return manifest.reseal(draft.build())
