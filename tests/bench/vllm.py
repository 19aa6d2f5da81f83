#!/usr/bin/env python3
"""vLLM's load phase and speed on a 2 GiB model: stock with a dropped and a warm page cache, attached, side by side.

    .venv-engines/bin/python tests/bench/vllm.py [--rounds 5] [--kind big]

Each round starts three engines one after the other in fresh processes (forked after the imports, which are the same for
all), so that what else the machine does hits all three alike. Prints one JSON object a start, then a table of medians. Also
measured: how much memory publishing takes at its peak, over the weights. Build first; nothing else should run.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engines"))

import models

import harness

TOKENS = 16


def drop(path):
    """Takes a file out of the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


class Peak(threading.Thread):
    """The most memory that a process has of its own plus what lies in its memfds, sampled every few milliseconds."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.bytes, self.over = pid, 0, threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(0.005):
            try:
                self.bytes = max(self.bytes, self._anonymous() + self._segments())
            except (FileNotFoundError, ProcessLookupError):
                continue

    def _anonymous(self):
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024

    def _segments(self):
        fds = Path(f"/proc/{self.pid}/fd")
        stats = {
            (s.st_dev, s.st_ino): s.st_blocks * 512
            for s in (os.stat(fds / f) for f in os.listdir(fds) if os.readlink(fds / f).startswith("/memfd:"))
        }
        return sum(stats.values())

    def end(self):
        self.over.set()
        self.join()
        return self.bytes


def measure(host, folder, model, name, format, extra=None, generate=True):
    options = {"model": str(model), "load_format": format, "dtype": "bfloat16"}
    if extra:
        options["model_loader_extra_config"] = extra
    begin = time.perf_counter()
    engine = harness.Engine(host, folder, options, ENGINES_PHASES="1")
    peak = Peak(engine.pid)
    with engine:
        engine.ready()
        row = {"start": name, "engine_s": round(time.perf_counter() - begin, 2), "peak_bytes": peak.end()}
        state = engine.state()[0]
        phases = state["loads"][0]["phases"] if state["loads"] else state["phases"]
        row["phases_ms"] = {k: round(v, 1) for k, v in phases.items()}
        row["load_ms"] = round(sum(phases.values()), 1)
        if generate:
            prompt = models.prompts(1)
            engine.generate(prompts=prompt, tokens=2)
            begin = time.perf_counter()
            engine.generate(prompts=prompt, tokens=TOKENS)
            row["tokens_per_s"] = round(TOKENS / (time.perf_counter() - begin), 2)
    print(json.dumps(row), flush=True)
    return row


def table(rows):
    print(f"\n{'start':10} {'load ms, median (min-max)':32} {'engine s':>9} {'tokens/s':>9}")
    for name in ("cold", "warm", "attached"):
        mine = [r for r in rows if r["start"] == name]
        load, engine, speed = ([r[k] for r in mine] for k in ("load_ms", "engine_s", "tokens_per_s"))
        print(
            f"{name:10} {f'{statistics.median(load):.0f} ({min(load):.0f}-{max(load):.0f})':32} "
            f"{statistics.median(engine):9.1f} {statistics.median(speed):9.2f}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kind", default="big")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ipc-cache-bench-") as name:
        folder = Path(name)
        threads = str(len(os.sched_getaffinity(0)))
        variables = harness.environment(
            harness.plugin_folder(folder / "plugins"),
            folder / "cache",
            OMP_NUM_THREADS=threads,
            IPC_CACHE_DIR=str(folder / "broker"),
        )
        del variables["OMP_WAIT_POLICY"]
        broker, host = harness.Broker(folder / "broker"), harness.Host(variables)
        try:
            model = models.make(folder / "model", options.kind)
            file = model / "model.safetensors"
            time.sleep(2.2)
            published = measure(host, folder, model, "publish", "ipc_broker", {"on_miss": "publish"}, generate=False)
            print(
                f"weights {file.stat().st_size} bytes; publishing peaked at {published['peak_bytes']} "
                f"bytes of memory of its own and in segments"
            )
            rows = []
            for _ in range(options.rounds):
                drop(file)
                rows.append(measure(host, folder, model, "cold", "auto"))
                rows.append(measure(host, folder, model, "warm", "auto"))
                rows.append(measure(host, folder, model, "attached", "ipc_broker"))
            table(rows)
        finally:
            host.stop()
            broker.stop()


if __name__ == "__main__":
    main()
