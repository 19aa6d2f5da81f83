"""The loader against what the machine can do and against other loaders: `make bench-loader`.

For one big file and 40 shards, cold (dropped from the page cache, which cachestat confirms) and warm: interleaved rounds,
minimum, median and maximum of GB/s, as a table, a CSV file and a plot. Entries:

    ipc-cache         tests/bench/loader.c `fill`: the loader and the host device, without a broker; each way of reading,
                      with hashing and without
    fio, read, cat    ceilings when cold: io_uring with O_DIRECT at its best block size; two threads of buffered preadv into
                      memory that is there; cat
    direct reads, ... no ceiling, since the loader may beat it, but the least that a cold load does without hashing: two
                      threads read with O_DIRECT and write that to segments
    copy              ceiling when warm: two threads copy mappings into fresh memory of the kind that the loader fills
    the rest          other loaders, for the CPU, if --python names a Python that has them (see peers.py)

Before each of them as much memory as it may need is used and freed, since a virtual machine's host takes back what is free.

Names that end in * are ceilings. The last columns are the medians' ratios to the best ceiling.

--passes says how often and as whom, any of: plain (the default); user (as uid --uid, which does not own the files and may
lock 8 MiB; needs root); huge (with huge pages for shared memory: shmem_enabled is set to advise, and set back afterwards;
needs root). `--passes plain,user,huge` is everything.
"""
import contextlib
import csv
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import numpy

from common import HERE, arguments, row_of

PEERS = ["safetensors", "safetensors-mapped", "fastsafetensors", "runai-model-streamer", "instanttensor"]
COLD = {f"ipc-cache {way}": ["fill", "--io", way] for way in ("auto", "direct", "buffered", "mmap")}
COLD["ipc-cache auto, no hash"] = ["fill", "--no-hash"]
COLD["ipc-cache direct, no io_uring"] = ["fill", "--io", "direct", "--no-ring"]
COLD["direct reads, and writes"] = ["move"]
COLD["read*"] = ["read"]
WARM = {"ipc-cache": ["fill"], "ipc-cache, no hash": ["fill", "--no-hash"], "ipc-cache buffered": ["fill", "--io", "buffered"],
        "copy*": ["copy"]}


def write_model(folder, megabytes, shards):
    """Tensors of 8 MiB (4 in shards), random."""
    os.makedirs(folder)
    size, places = (8 if shards == 1 else 4) << 20, {}
    generator = numpy.random.default_rng(0)
    for shard in range(shards):
        name = "model.safetensors" if shards == 1 else f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        count = (megabytes << 20) // shards // size
        entries = {f"layer.{shard}.{i}.weight": {"dtype": "BF16", "shape": [1024, size // 2048],
                                                 "data_offsets": [i * size, (i + 1) * size]} for i in range(count)}
        places.update({tensor: name for tensor in entries})
        header = json.dumps(entries).encode()
        header += b" " * (-len(header) % 8)
        with open(f"{folder}/{name}", "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            for _ in range(count):
                file.write(generator.bytes(size))
            os.fsync(file.fileno())
    if shards > 1:
        pathlib.Path(folder, "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}), encoding="ascii")


SHMEM_ENABLED = pathlib.Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
USER_MEMLOCK = 8 << 20


@contextlib.contextmanager
def huge_pages():
    """Shared memory gets huge pages on advice; as before at the end, Ctrl-C and SIGTERM included."""
    before = re.search(r"\[(\w+)\]", SHMEM_ENABLED.read_text()).group(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    SHMEM_ENABLED.write_text("advise")
    try:
        yield
    finally:
        SHMEM_ENABLED.write_text(before)


class Bench:
    def __init__(self, args, folder, user):
        self.program, self.python, self.folder, self.user = f"{folder}/../bench-loader", args.python, folder, user
        self.files = sorted(str(p) for p in pathlib.Path(folder).glob("*.safetensors"))
        self.bytes = sum(os.path.getsize(f) for f in self.files)
        self.results, self.notes = {}, {}

    def ours(self, *words, user=None):
        verb, rest = words[0], words[1:]
        limit = (lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (USER_MEMLOCK, USER_MEMLOCK))) if user else None
        done = subprocess.run([self.program, verb, self.folder, *rest], stdout=subprocess.PIPE, text=True, check=True,
                              user=user, group=user, extra_groups=[] if user else None, preexec_fn=limit)
        return json.loads(done.stdout)

    def prepare(self, cold):
        left = self.ours("evict" if cold else "cache")["resident"]
        if cold and left > 1:
            sys.exit(f"{left} % of {self.folder} stay in the page cache")
        self.ours("touch")

    def note(self, name, seconds, about=None):
        self.results.setdefault(name, []).append(self.bytes / seconds / 1e9)
        if about:
            self.notes[name] = about

    def peer(self, name, cold):
        if name in self.notes and "does not run" in self.notes[name]:
            return
        self.prepare(cold)
        done = subprocess.run([self.python, HERE / "peers.py", name, self.folder], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=False, timeout=300)
        found = re.search(r"^seconds ([0-9.]+)", done.stdout, re.M)
        if found:
            self.note(name, float(found.group(1)))
        else:
            self.notes[name] = (done.stdout.strip().splitlines() or ["does not run: it ended without a word"])[-1]

    def fio(self):
        if shutil.which("fio") is None:
            self.notes["fio*"] = "does not run: it is not installed"
            return
        best = 0
        for block, depth in (("1M", 16), ("4M", 8)):
            self.prepare(True)
            done = subprocess.run(["fio", "--name=x", f"--filename={':'.join(self.files)}", "--readonly", "--rw=read",
                                   "--direct=1", "--ioengine=io_uring", f"--bs={block}", f"--iodepth={depth}",
                                   "--file_service_type=sequential", "--output-format=json"], stdout=subprocess.PIPE,
                                  text=True, check=True)
            job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]["read"]
            best = max(best, job["bw_bytes"])
        self.results.setdefault("fio*", []).append(best / 1e9)

    def cat(self):
        self.prepare(True)
        start = time.perf_counter()
        subprocess.run(["cat", *self.files], stdout=subprocess.DEVNULL, check=True)
        self.note("cat*", time.perf_counter() - start)

    def round(self, cold):
        for name, words in (COLD if cold else WARM).items():
            self.prepare(cold)
            result = self.ours(*words, user=self.user)
            self.note(name, result["seconds"], f"{result['max_rss'] >> 20} MiB peak, way {result.get('way', '-')}, "
                      f"{result.get('huge', 0) >> 20} MiB in huge pages" if words[0] == "fill" else None)
        if cold:
            self.fio()
            self.cat()
        for name in PEERS if self.python else []:
            self.peer(name, cold)


def show(title, bench, writer):
    ceiling = max(statistics.median(v) for k, v in bench.results.items() if k.endswith("*"))
    print(f"\n{title:<34}{'min':>8}{'median':>8}{'max':>8}  GB/s   of the ceiling")
    for name, values in bench.results.items():
        low, middle, high = row_of(values)
        about = bench.notes.get(name, "")
        print(f"{name:<34}{low:>8.2f}{middle:>8.2f}{high:>8.2f}  {middle / ceiling:>10.0%}   {about}")
        writer.writerow([title, name, f"{low:.3f}", f"{middle:.3f}", f"{high:.3f}", f"{middle / ceiling:.3f}", about])
    for name, about in bench.notes.items():
        if name not in bench.results:
            print(f"{name:<34}{about}")
            writer.writerow([title, name, "", "", "", "", about])


def plot(benches, path):
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no plot: this Python has no matplotlib")
        return
    figure, axes = pyplot.subplots(1, len(benches), figsize=(7 * len(benches), 6), squeeze=False)
    for axis, (title, bench) in zip(axes[0], benches):
        names = list(bench.results)[::-1]
        middles = [statistics.median(bench.results[n]) for n in names]
        spread = [[m - min(bench.results[n]) for n, m in zip(names, middles)],
                  [max(bench.results[n]) - m for n, m in zip(names, middles)]]
        axis.barh(names, middles, xerr=spread, color=["tab:blue" if n.startswith("ipc") else "0.75" for n in names])
        axis.set(title=title, xlabel="GB/s: median, minimum to maximum")
    figure.tight_layout()
    figure.savefig(path)


def main():
    args = arguments(__doc__.splitlines()[0], python="", megabytes=1024, out="", only="", passes="plain", uid=1000, folder="")
    out = args.out or f"{args.build}/bench-loader"
    passes = args.passes.split(",")
    place = tempfile.TemporaryDirectory(dir=args.folder or (None if "user" in passes else args.build))
    with place as place, open(out + ".csv", "w", newline="", encoding="utf-8") as file:
        writer, benches = csv.writer(file), []
        # Where an ordinary user can reach them.
        os.chmod(place, 0o755)
        shutil.copy(f"{args.build}/tests/bench-loader", place)
        writer.writerow(["case", "loader", "min", "median", "max", "of_ceiling", "about"])
        for shards in (1, 40):
            folder = f"{place}/{shards}"
            write_model(folder, args.megabytes, shards)
            for cold, kind in [(c, k) for c in (True, False) for k in passes]:
                title = f"{'cold' if cold else 'warm'}, {'one file' if shards == 1 else '40 shards'}"
                title += {"plain": "", "user": ", ordinary user", "huge": ", huge pages"}[kind]
                if args.only and args.only not in title:
                    continue
                bench = Bench(args, folder, args.uid if kind == "user" else None)
                with huge_pages() if kind == "huge" else contextlib.nullcontext():
                    bench.round(cold)  # a warm-up, discarded
                    bench.results = {}
                    for _ in range(args.rounds):
                        bench.round(cold)
                show(title, bench, writer)
                benches.append((title, bench))
            shutil.rmtree(folder)
        plot(benches, out + ".png")


main()
