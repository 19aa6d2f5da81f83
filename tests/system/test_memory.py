"""Loading under a memory limit: found before it is allocated, and survived when it is not."""
import contextlib
import os
import signal
import subprocess
import uuid

import pytest

import models
from harness import finish, wait_until
from protocol import LOADING, memfd, sealed

MIB = 1 << 20


class Cgroup:
    """A memory cgroup below our own; of version 1 or 2."""

    def __init__(self):
        self.path = self.version = None
        with open("/proc/self/cgroup", encoding="ascii") as file:
            ours = {parts[1]: parts[2] for parts in (line.strip().split(":", 2) for line in file)}
        with open("/proc/mounts", encoding="ascii") as file:
            mounts = [line.split()[1:4] for line in file]
        for point, kind, options in mounts:
            if self.version == 1:
                break
            if kind == "cgroup" and "memory" in options.split(","):
                self._make(1, point, ours.get("memory") or next((v for k, v in ours.items() if "memory" in k.split(",")), "/"))
            elif kind == "cgroup2" and self.path is None:
                self._make(2, point, ours.get("", "/"))

    def _make(self, version, point, below):
        for parent in (point + below, point):
            path = os.path.join(parent, f"ipc-cache-test-{uuid.uuid4().hex[:8]}")
            with contextlib.suppress(OSError):
                os.mkdir(path)
                if os.path.exists(os.path.join(path, "memory.limit_in_bytes" if version == 1 else "memory.max")):
                    self.path, self.version = path, version
                    return
                os.rmdir(path)

    def limit(self, size):
        name = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
        with open(os.path.join(self.path, name), "w", encoding="ascii") as file:
            file.write(str(size))

    def run(self):
        """The command line that moves itself in, then goes on."""
        return ("sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh")

    def remove(self):
        with open(os.path.join(self.path, "cgroup.procs"), encoding="ascii") as file:
            for pid in file.read().split():
                os.kill(int(pid), signal.SIGKILL)
        wait_until(self._gone, "the cgroup to be empty")

    def _gone(self):
        with contextlib.suppress(OSError):
            os.rmdir(self.path)
        return not os.path.exists(self.path)


@pytest.fixture
def cgroup(root, not_sanitized):
    made = Cgroup()
    if made.path is None:
        pytest.skip("no memory cgroup can be made here")
    yield made
    made.remove()


def test_a_limit_that_is_too_low_is_found_before_anything_is_allocated(broker, cli, cgroup, folder):
    model = models.write_sparse(folder / "large.safetensors", 256 * MIB)
    cgroup.limit(128 * MIB)
    failed = cli("load", model, "--json", prefix=cgroup.run())
    assert failed.status == 1, failed
    error = failed.json["error"]
    assert error["name"] == "no-memory" and "256.0 MiB of memory" in error["message"]
    assert "128.0 MiB" in error["message"] and cgroup.path in error["message"] and "raise that limit" in error["message"]
    assert broker.becomes_empty()
    cgroup.limit(512 * MIB)
    cli("load", model, prefix=cgroup.run(), expect=0)
    cli("evict", "large", expect=0)
    assert broker.becomes_empty()


def test_the_limit_of_an_ancestor_counts(broker, cli, cgroup, folder):
    if cgroup.version == 2:
        pytest.skip("version 2 would need the controller to be delegated")
    child = os.path.join(cgroup.path, "child")
    os.mkdir(child)
    try:
        model = models.write_sparse(folder / "large.safetensors", 256 * MIB)
        cgroup.limit(128 * MIB)
        inside = ("sh", "-c", f'echo $$ > {child}/cgroup.procs && exec "$@"', "sh")
        failed = cli("load", model, prefix=inside, expect=1)
        assert "128.0 MiB" in failed.err
    finally:
        os.rmdir(child)
    assert broker.becomes_empty()


def test_more_than_the_machine_has_is_refused_at_once(broker, cli, folder):
    model = models.write_sparse(folder / "giant.safetensors", 1 << 42)
    failed = cli("load", model, "--json", expect=1)
    assert failed.json["error"]["name"] == "no-memory" and "4096.0 GiB" in failed.err
    assert broker.becomes_empty()


def load_stopped_at_its_claim(broker, cli, cgroup, model):
    """A load that is stopped before it has allocated much."""
    load = subprocess.Popen(cli.command("load", model, prefix=cgroup.run()), stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with broker.connect() as client:
        while load.poll() is None and not client.list():
            pass
        load.send_signal(signal.SIGSTOP)
        assert client.list() and client.list()[0]["state"] == LOADING, "the load was over before it could be stopped"
    return load


def test_a_load_that_the_kernel_kills_for_its_memory_leaves_nothing(broker, cli, cgroup, folder):
    """The limit is lowered after the loader has looked at it."""
    model = models.write_sparse(folder / "large.safetensors", 1024 * MIB)
    cgroup.limit(2048 * MIB)
    load = load_stopped_at_its_claim(broker, cli, cgroup, model)
    try:
        cgroup.limit(256 * MIB)
        load.send_signal(signal.SIGCONT)
        ended = finish(load)
    finally:
        load.kill()
        load.wait()
    assert ended.status == -signal.SIGKILL or ended.status == 1, ended
    assert broker.becomes_empty()
    assert broker.serves()


def test_a_publisher_that_the_kernel_kills_while_it_fills_leaves_nothing(broker, cgroup):
    cgroup.limit(64 * MIB)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            with open(os.path.join(cgroup.path, "cgroup.procs"), "w", encoding="ascii") as file:
                file.write(str(os.getpid()))
            client = broker.connect()
            client.begin({"model": "/large"}, [4096] + [256 * MIB])
            client.segments([sealed(bytes(4096))])
            os.write(writer, b".")
            memfd(size=256 * MIB)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert file.read(1) == b"."
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert broker.becomes_empty()
