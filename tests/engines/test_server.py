"""vLLM's server over HTTP, as a user starts it with ipc-cache-serve: a front end and an engine core, as usual."""

import json
import os
import signal
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

import harness

PORT = 29713
SERVE = "from ipc_cache.vllm.serve import main; main()"


class Server:
    def __init__(self, python, log, path, *flags):
        self.path, self.log = path, log
        options = ["--dtype", "bfloat16", "--skip-tokenizer-init", "--enforce-eager", "--max-model-len", "256"]
        with open(log, "w") as out:
            self.process = python(
                "-c", SERVE, *flags, path, *options, "--port", PORT, "--host", "127.0.0.1",
                environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def get(self, what):
        return urllib.request.urlopen(f"http://127.0.0.1:{PORT}/{what}", timeout=harness.PATIENCE).read().decode()

    def wait(self):
        """Until it answers: its metrics."""
        deadline = time.monotonic() + harness.PATIENCE
        while True:
            try:
                return self.get("metrics")
            except OSError:
                assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()[-3000:]
                time.sleep(0.2)

    def tokens(self, count=4):
        """The first answer to one prompt."""
        body = {"model": str(self.path), "prompt": [1, 5, 9], "max_tokens": count, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{PORT}/v1/completions",
            json.dumps({**body, "return_token_ids": True}).encode(),
            {"Content-Type": "application/json"},
        )
        return json.loads(urllib.request.urlopen(request, timeout=harness.PATIENCE).read())["choices"][0]["token_ids"]

    def children(self):
        return children(self.process.pid)


def children(pid):
    found = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for each in found for child in each]


def engine_core(pid):
    """Of a server."""
    (found,) = [child for child in children(pid) if b"EngineCore" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return found


@pytest.fixture
def server(python, published, folder):
    """server(*flags): one on a published model; nothing of it is left afterwards."""
    started = []

    def start(*flags):
        started.append(Server(python, folder / "server.log", published("llama"), *flags))
        return started[-1]

    yield start
    for each in started:
        for group in [*each.children(), each.process.pid] if each.process.poll() is None else []:
            with suppress(ProcessLookupError):  # only a standby's server leads a group of its own
                os.killpg(group, signal.SIGKILL)
        each.process.wait()


def test_the_server_attaches_and_counts(server):
    one = server()
    metrics = one.wait()
    assert "ipc_cache: attached target" in one.log.read_text()
    assert "vllm:" in metrics
    assert len(one.tokens()) == 4


def test_a_killed_server_is_back_without_its_imports(server):
    """It attaches, and answers as before. (Its engine core is forked, too; a CPU worker vLLM spawns nevertheless.)"""
    one = server("--standby")
    one.wait()
    first, (pid,) = one.tokens(), one.children()
    core = engine_core(pid)
    os.kill(pid, signal.SIGKILL)
    harness.gone(pid)
    one.wait()
    assert one.tokens() == first and not harness.alive(core)
    log = one.log.read_text()
    assert "the server has ended (signal 9); it is started again" in log
    assert log.count("ipc_cache: attached target") == 2
    (pid,) = one.children()
    os.kill(engine_core(pid), signal.SIGKILL)  # which the server ends in order after
    harness.gone(pid)
    one.wait()
    assert one.tokens() == first and one.log.read_text().count("it is started again") == 2
    (pid,) = one.children()
    one.process.terminate()
    assert one.process.wait(harness.PATIENCE) in (0, 128 + signal.SIGTERM)
    assert not harness.alive(pid)
