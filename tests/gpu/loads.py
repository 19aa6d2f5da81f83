"""Loading into a GPU's memory, for tests/gpu/run: a file in the page cache, of a tmpfs and of a disk, and cold from that disk.

What is timed by `bench-loader fill` is the transfer alone: context and segments are there when it begins, and the last byte is
in its place when it ends. `ipc-cache load` is timed from its start to the commit, the driver's set-up included.
"""
import json
import os
import pathlib
import shutil
import statistics
import struct
import subprocess
import tempfile
import threading
import time

from common import GIB, MIB

WRITERS = 8


def write_model(path, tensors, tensor_bytes):
    """One file, no two MiB of it alike, old enough that a load need not wait for its times to settle."""
    entries = {f"layer.{i}.weight": {"dtype": "U8", "shape": [tensor_bytes],
                                     "data_offsets": [i * tensor_bytes, (i + 1) * tensor_bytes]} for i in range(tensors)}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    block, begin = os.urandom(MIB), 8 + len(header)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(fd, struct.pack("<Q", len(header)) + header, 0)

    def write(first):
        for i in range(first, tensors * tensor_bytes // MIB, WRITERS):
            os.pwrite(fd, struct.pack("<QQ", i, ~i & (1 << 64) - 1) + block[16:], begin + i * MIB)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.fsync(fd)
    os.close(fd)
    os.utime(path, (1e9, 1e9))


def spread(values, unit="GB/s"):
    return f"{min(values):.1f} / {statistics.median(values):.1f} / {max(values):.1f} {unit}"


class Loads:
    def __init__(self, build, rounds, fake):
        self.bench, self.cli_path, self.rounds = build / "tests" / "bench-loader", build / "ipc-cache", rounds
        self.shape = (2, 3 * MIB) if fake else (32, GIB // 2)
        self.cold_shape = (1, 3 * MIB) if fake else (8, GIB // 2)
        self.threads = (1, 2) if fake else (4, 8, 16, 32)

    def run(self, *words):
        done = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{words}: {done.stderr[-1000:]}")
        return done.stdout

    def fill(self, path, *options):
        """GB/s of one fill of a GPU's segments, and what it says."""
        said = json.loads(self.run(self.bench, "fill", path, "--device", "cuda:0", *options))
        if not said["pinned"]:
            raise RuntimeError("the buffers were not pinned")
        return said["bytes"] / said["seconds"] / 1e9, said

    def warm(self, path):
        """Rates by case: interleaved rounds after one that does not count."""
        cases = {"hashed": (), "not hashed": ("--no-hash",)}
        cases.update({f"hashed, {n} threads": ("--threads", n) for n in self.threads})
        rates = {name: [] for name in cases}
        self.run(self.bench, "cache", path)
        for i in range(self.rounds + 1):
            for name, options in cases.items():
                rate, said = self.fill(path, *options)
                if said["direct"]:
                    raise RuntimeError(f"{said['direct']} bytes came from the disk")
                if i > 0:
                    rates[name].append(rate)
        return rates

    def whole(self, path, name):
        """Three loads by the command, the last one verified byte by byte; seconds, GB/s of the transfer, damage."""
        seconds, rates, damage = [], [], None
        for i in range(3):
            said = json.loads(self.run(self.cli_path, "load", path, "--device", "cuda:0", "--name", name, "--json"))
            seconds.append(said["seconds"])
            rates.append(said["bytes"] / said["io"]["fill_seconds"] / 1e9)
            if i == 2:
                damage = json.loads(self.run(self.cli_path, "verify", name, "--json"))["damage"]
            self.run(self.cli_path, "evict", name)
        return seconds, rates, damage

    def cold(self, path):
        """The loader and what the disk gives to others, each after dropping the file from the page cache."""
        size = os.path.getsize(path)
        rates = {name: [] for name in ("loader", "loader, not hashed", "read*", "direct*", "cat*")}
        for i in range(self.rounds + 1):
            for name in rates:
                left = json.loads(self.run(self.bench, "evict", path))["resident"]
                if left > 1:
                    raise RuntimeError(f"{left} % of the file stay in the page cache")
                begun = time.monotonic()
                if name == "cat*":
                    subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)
                    rate = size / (time.monotonic() - begun) / 1e9
                elif name.endswith("*"):
                    rate = size / json.loads(self.run(self.bench, name[:-1], path))["seconds"] / 1e9
                else:
                    rate = self.fill(path, *(["--no-hash"] if "not" in name else []))[0]
                if i > 0:
                    rates[name].append(rate)
        return rates


def measure(build, disk, fake, rounds, bar, note, figures):
    """bar(name, holds, figure, limit) and note(name, figure) write the report's lines."""
    loads = Loads(build, rounds, fake)
    tmpfs = "/dev/shm" if not fake else disk
    for kind, parent in ("tmpfs", tmpfs), ("disk", disk):
        place = pathlib.Path(tempfile.mkdtemp(prefix="ipc-cache-load-", dir=parent))
        try:
            write_model(place / "model.safetensors", *loads.shape)
            size = loads.shape[0] * loads.shape[1] / GIB
            rates = loads.warm(place / "model.safetensors")
            figures[f"warm_{kind}"] = rates
            best = statistics.median(rates["hashed"])
            bar(f"page cache ({kind}) to VRAM, {size:.1f} GiB, hashed, transfer", fake or best >= 45, spread(rates["hashed"]), "45 GB/s")
            note(f"the same, not hashed ({kind})", spread(rates["not hashed"]))
            for threads in loads.threads:
                note(f"the same, hashed, {threads} threads ({kind})", spread(rates[f"hashed, {threads} threads"]))
            seconds, transfer, damage = loads.whole(place / "model.safetensors", f"load-{kind}")
            figures[f"whole_{kind}"] = {"seconds": seconds, "transfer": transfer}
            bar(f"ipc-cache load of it ({kind}), then verify", damage == [],
                f"{spread(seconds, 's')} from start to commit, of which the transfer at {spread(transfer)}")
        finally:
            shutil.rmtree(place)
    place = pathlib.Path(tempfile.mkdtemp(prefix="ipc-cache-load-", dir=disk))
    try:
        write_model(place / "model.safetensors", *loads.cold_shape)
        rates = loads.cold(place / "model.safetensors")
        figures["cold"] = rates
        best = max(statistics.median(v) for k, v in rates.items() if k.endswith("*"))
        part = statistics.median(rates["loader"]) / best
        bar("cold disk to VRAM, hashed", fake or part >= 0.95, f"{spread(rates['loader'])}, {part:.0%} of the best of the next", "95 %")
        for name in rates:
            if name != "loader":
                note({"read*": "two threads of preadv", "direct*": "eight threads of preadv, O_DIRECT", "cat*": "cat",
                      "loader, not hashed": "cold disk to VRAM, not hashed"}[name], spread(rates[name]))
    finally:
        shutil.rmtree(place)
