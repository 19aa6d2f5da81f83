"""Fixtures of the engine tests. Engines are shared where that is honest: a kind of model is loaded ordinarily once, and its
answers are compared with those of every attached engine of that kind."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import harness

sys.path.insert(0, str(harness.ROOT / "python"))

import models

SETTLED = 2.2  # seconds after which a file's times tell it from a later write


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: by hand, see docs/vllm.md")


@pytest.fixture(scope="session")
def folder():
    with tempfile.TemporaryDirectory(prefix="ipc-cache-engines-") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def variables(folder):
    """The environment of every process of the tests."""
    cache = os.environ.get("ENGINES_CACHE", folder / "cache")
    made = harness.environment(harness.plugin_folder(folder / "plugins"), cache, IPC_CACHE_DIR=str(folder / "broker"))
    os.environ.update({k: made[k] for k in ("IPC_CACHE_LIBRARY", "IPC_CACHE_DIR")})
    return made


@pytest.fixture(scope="session")
def broker(folder, variables):
    broker = harness.Broker(folder / "broker")
    yield broker
    broker.stop()


@pytest.fixture
def own_broker(tmp_path):
    """own_broker(): a broker of the test's own, and the environment of who shall find it, which may begin before it."""
    started = []
    environment = {"IPC_CACHE_DIR": str(tmp_path / "broker")}

    def start():
        started.append(harness.Broker(environment["IPC_CACHE_DIR"]))
        return started[-1]

    start.environment = environment
    yield start
    for each in started:
        each.stop()


@pytest.fixture(scope="session")
def host(variables, broker):
    host = harness.Host(variables)
    yield host
    host.stop()


@pytest.fixture(scope="session")
def checkpoint(folder):
    """checkpoint(kind, dtype): a folder made once, old enough that its files can be told by their times."""
    made = {}

    def get(kind, dtype="bfloat16", seed=0):
        name = f"{kind}-{dtype}-{seed}"
        if name not in made:
            made[name] = models.make(folder / "models" / name, kind, getattr(torch, dtype), seed)
            time.sleep(SETTLED)
        return made[name]

    return get


@pytest.fixture
def changed(folder, tmp_path):
    """changed(source, change): an altered copy under another path, old enough."""

    def make(source, change=lambda tensors: None):
        copy = models.altered(source, tmp_path / "copy", change)
        time.sleep(SETTLED)
        return copy

    return make


@pytest.fixture(scope="session")
def start(host, folder):
    """start(model, format, **options): an engine that is ready; with `wait=False` one that is starting."""
    logs = folder / "logs"
    logs.mkdir()
    started = []

    def engine(model, format="ipc_broker", extra=None, wait=True, environment=None, **options):
        options = {"model": str(model), "load_format": format, **options}
        if extra:
            options["model_loader_extra_config"] = extra
        made = harness.Engine(host, logs, options, **(environment or {}))
        started.append(made)
        return made.ready() if wait else made

    yield engine
    for made in started:
        if harness.alive(made.pid):
            made.close()


@pytest.fixture(scope="session")
def answers(start, checkpoint):
    """answers(kind, dtype, how): what an engine of that kind says to the twenty prompts, and its tensors.

    how: "control" and "again", two ordinary loads with the product that attached engines use; "stock", vLLM as it is;
    "published", the engine that fills the broker; "attached"."""
    known = {}

    def get(kind, dtype, how, **options):
        name = (kind, dtype, how, json.dumps(options, sort_keys=True))
        if name not in known:
            if how == "attached":
                get(kind, dtype, "published", **options)
            format = {"control": "control", "again": "control", "stock": "auto"}.get(how, "ipc_broker")
            extra = {"on_miss": "publish"} if how == "published" else None
            with start(checkpoint(kind, dtype), format, extra, dtype=dtype, **options) as engine:
                said = engine.generate(prompts=models.prompts()) if how != "published" else None
                known[name] = {"said": said, "tensors": engine.tensors(), "state": engine.state(), "log": engine.text()}
        return known[name]

    return get


@pytest.fixture(scope="session")
def published(start, checkpoint, broker):
    """published(kind, dtype): the folder of a model that is resident, published by an engine that has ended."""

    def get(kind="llama", dtype="bfloat16", seed=0):
        path = checkpoint(kind, dtype, seed)
        if not broker.of(path, dtype=dtype, tensor_parallel_size="1", runner="generate"):
            start(path, extra={"on_miss": "publish"}, dtype=dtype).close()
        return path

    return get


@pytest.fixture(scope="session")
def run_job(host, folder):
    """run_job("module:function", *arguments): the function's answer, from a child process that has imported vLLM."""

    def run(function, *arguments, **environment):
        out = Path(tempfile.mkstemp(dir=folder, suffix=".json")[1])
        out.unlink()
        log = out.with_suffix(".log")
        pid = host.fork(log, "jobs:run", function, str(out), list(arguments), **environment)
        while harness.alive(pid):
            time.sleep(0.02)
        assert out.exists(), log.read_text(errors="replace")[-3000:]
        answer = json.loads(out.read_text())
        assert "error" not in answer, answer["error"]
        return answer["result"]

    return run


@pytest.fixture(scope="session")
def python(variables):
    """Runs a Python program of its own, such as the daemon: Popen arguments are passed on."""

    def run(*arguments, environment=None, **options):
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)], env={**variables, **(environment or {})}, text=True, **options
        )

    return run
