"""What every step of the run uses: the report, the broker, the process that engines are forked from, and engines by kind."""

import datetime
import json
import os
import re
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bigmodels
import models
import pagecache
from engines import FORMAT, HERE, Broker, Failed, Host
from smi import Cards, Peak

MIB = 1 << 20
PROMPTS = models.prompts(8)
BIG_STEPS = {"big", "cold", "own", "peers", "tp"}
SHARE = {"gpu_memory_utilization": 0.2}  # of the card, for small models: a large KV cache has blocks by the million


def mib(count):
    return f"{count / MIB:.0f} MiB"


def phases(load):
    return ", ".join(f"{name} {ms:.1f} ms" for name, ms in load["phases"].items())


def spread(values):
    """Minimum, median and maximum of those that are known."""
    known = sorted(value for value in values if value is not None)
    return f"{known[0]:.2f} / {statistics.median(known):.2f} / {known[-1]:.2f}" if known else "not told"


def compiled(engine):
    """What the log says of torch.compile and its cache, without folders."""
    marks = ("Directly load", "Compiling model again", "compile took", "AOT compiled function", "Graph capturing finished")
    return [re.sub(r"/\S*/", ".../", line.split("] ", 1)[-1])[:240] for line in engine.text().splitlines()
            if any(mark in line for mark in marks)]


def measured(engine):
    """What a start took, in seconds: the whole, vLLM's own lines, and to the first token, from LLM()."""
    said = engine.result()
    first = engine.call("timed", prompts=PROMPTS[:1], tokens=1)
    return {**said, "first_s": said["start_s"] + first,
            "weights_s": engine.said(r"Loading weights took ([0-9.]+) seconds"),
            "model_s": engine.said(r"Model loading took .* and ([0-9.]+) seconds"),
            "init_s": engine.said(r"init engine .* took ([0-9.]+)")}


def told(said):
    """A line of what measured() returns."""
    return (f"Loading weights took {said['weights_s']} s, Model loading took {said['model_s']} s, init engine {said['init_s']} s, "
            f"engine start {said['start_s']:.2f} s, first token {said['first_s']:.2f} s after LLM()")


class Trial:
    """One run. rows: of the report; missed: names of missed bars; figures: what goes into report.json beside the rows."""

    def __init__(self, options):
        self.options, self.card = options, Cards()
        self.began = time.monotonic()
        self.rows, self.missed, self.figures = [], [], {}
        options.folder.mkdir(parents=True, exist_ok=True)
        self._making = None
        if BIG_STEPS & set(options.steps):  # while vLLM is imported
            self._pool = ThreadPoolExecutor(1)
            config = bigmodels.of_size(0.03) if options.cpu else bigmodels.EIGHT
            self._making = self._pool.submit(bigmodels.make, options.models / "big", config)
            self._pool.submit(pagecache.write_back, options.models / "big")
        path = f"{HERE}:{os.environ.get('PYTHONPATH', '')}"
        self.host = Host(options.folder, {**os.environ, "PYTHONPATH": path, "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"},
                         not options.no_preload)
        self.start_broker()

    @property
    def old(self):
        """A vLLM that cannot be told that weights are final."""
        return tuple(map(int, self.figures["vllm"].split(".")[:2])) < (0, 30)

    def start_broker(self):
        self.broker = Broker(self.options.programs, Path(tempfile.mkdtemp(prefix="ipc-cache-vllm-")))

    def big_made(self):
        """The large model's folder."""
        return self._making.result()

    @property
    def memory(self):
        """The share of the card of an engine with the large model."""
        return {} if self.options.cpu else {"gpu_memory_utilization": 0.3}

    def resident(self, name, folder, **more):
        """Has the model in the broker, published if it is not there."""
        if not any(m["key"]["model"] == str(folder) for m in self.broker.models()):
            self.published(f"{name}-publish", folder, **more)

    # ---- the report

    def say(self, text):
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", flush=True)

    def bar(self, name, holds, figure, limit=""):
        """A line of the report; holds is None for what is only told."""
        self.rows.append((name, figure, limit, "" if holds is None else "yes" if holds else "NO"))
        if holds is False:
            self.missed.append(name)
        self.say(f"{'    ' if holds is None else 'ok  ' if holds else 'MISS'} {name}: {figure}{f' (bar: {limit})' if limit else ''}")

    def attempt(self, name, step, *arguments):
        if time.monotonic() - self.began > self.options.seconds:
            self.bar(name, False, "not begun: the time was over")
            return None
        try:
            return step(self, *arguments)
        except Exception as error:  # pylint: disable=broad-except
            self.bar(name, False, f"failed: {error}".replace("\n", " | ").replace("|", "/")[:1500])
            return None

    def report(self):
        commit = HERE / "COMMIT"
        lines = ["# vLLM on a GPU", "", f"- date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
                 f"- card, memory, driver: {self.card.query('--query-gpu', 'name,memory.total,driver_version') or 'none'}",
                 f"- kernel: {os.uname().release}, {os.cpu_count()} processors", f"- versions: {self.figures.get('versions')}",
                 f"- commit: {commit.read_text().strip() if commit.exists() else 'unknown'}",
                 f"- command: tests/gpu/vllm/run {' '.join(sys.argv[1:])}", f"- took: {time.monotonic() - self.began:.0f} s", "",
                 "| what | figure | bar | holds |", "| --- | --- | --- | --- |"]
        lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in self.rows]
        (self.options.folder / "report.md").write_text("\n".join(lines) + "\n")
        (self.options.folder / "report.json").write_text(json.dumps({"rows": self.rows, **self.figures}, indent=1))
        self.say(f"{len(self.missed)} bars missed")

    # ---- children

    def ordinary(self, name, folder, environment=None, **more):
        """vLLM as it is, without any plugin unless the environment says so."""
        return self.host.fork(name, "job.serve", {"VLLM_PLUGINS": "", **(environment or {})},
                              options={"model": str(folder), "load_format": "auto", **more})

    def broker_options(self, **extra):
        return {"load_format": FORMAT, "model_loader_extra_config": {"dir": self.broker.directory, **extra}}

    def attached(self, name, folder, extra=None, environment=None, **more):
        return self.host.fork(name, "job.serve", {"VLLM_PLUGINS": "ipc_cache", **(environment or {})},
                              options={"model": str(folder), **self.broker_options(**(extra or {})), **more})

    def publisher(self, name, folder, extra, **more):
        """A worker up to its loaded model, and nothing of an engine after it."""
        return self.host.fork(name, "job.publish", {"VLLM_PLUGINS": "ipc_cache"},
                              options={"model": str(folder), **self.broker_options(**extra), **more})

    def refusal(self, name, folder, extra, **more):
        """What such a worker fails with; what it does instead, if it does not fail."""
        with self.publisher(name, folder, extra, **more) as job:
            try:
                how = job.result()["loads"][0]["how"]
            except Failed as error:
                how = str(error)
        self.card.settled()
        return how

    def published(self, name, folder, **more):
        """Published by a process of its own, which is killed afterwards; what it reported, and the most memory in use."""
        base = self.card.settled()
        with Peak(self.card) as peak:
            with self.publisher(name, folder, {"on_miss": "publish"}, **more) as job:
                said = job.result()
                job.kill()
        return {**said, "peak": peak.most - base}

    def strict(self, what, name, folder, **more):
        """An ordinary engine and an attached one: equal to the last bit? Returns what both said of their start, the tokens and
        the plugin's report of every rank."""
        with self.ordinary(f"{name}-ordinary", folder, **more) as engine:
            cold = engine.result()
            cold["compiled"] = compiled(engine)
            first, second = engine.call("generate", prompts=PROMPTS), engine.call("generate", prompts=PROMPTS)
            engine.kill()
        self.card.settled()
        with self.attached(f"{name}-attached", folder, **more) as engine:
            warm = engine.result()
            warm["compiled"] = compiled(engine)
            third = engine.call("generate", prompts=PROMPTS)
            loads = [rank["loads"][0] for rank in engine.call("state")]
            engine.kill()
        self.card.settled()
        if first != second and not self.options.cpu:
            self.bar(f"{what}: comparison", False, "void: the ordinary engine differs from itself")
            return cold, warm, first, loads
        tokens = sum(a[0] == b[0] for a, b in zip(first, third))
        both = sum(a == b for a, b in zip(first, third))
        self.bar(f"{what}: attached equals the ordinary load", None if self.options.cpu else both == len(PROMPTS),
            f"tokens {tokens}, tokens and log-probabilities {both} of {len(PROMPTS)} prompts; {loads[0]['tensors']} tensors",
            f"{len(PROMPTS)} of {len(PROMPTS)}")
        less = abs(cold["blocks"] - warm["blocks"])
        # The driver gives memory out in 2 MiB: blocks much smaller than that cannot be counted to the block.
        self.bar(f"{what}: KV-cache blocks", None if self.options.cpu else less <= 2 or less * warm["block_bytes"] <= 8 * MIB,
            f"{cold['blocks']} ordinary, {warm['blocks']} attached, {less * warm['block_bytes'] / MIB:.1f} MiB apart",
            "within 2, or 8 MiB")
        self.bar(f"{what}: engine start", None, f"{cold['start_s']:.2f} s ordinary, {warm['start_s']:.2f} s attached; "
            + "; ".join(phases(load) for load in loads))
        return cold, warm, first, loads
