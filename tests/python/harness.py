"""A broker of the test's own, small files, and child processes that run a piece of Python."""

import array
import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time

from ipc_cache.loader import program

PATIENCE = float(os.environ.get("IPC_CACHE_PATIENCE", "60"))  # seconds until what is waited for counts as never coming


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {PATIENCE} s for {what}"
        time.sleep(0.005)
    return value


class Broker:
    """ipc-cached in a folder of its own."""

    def __init__(self, folder):
        self.directory = os.path.join(folder, "broker")
        self.log_path = os.path.join(folder, "broker.log")
        self.start()

    def start(self):
        # A sanitizer that Python was started with opens files, which the broker's sandbox forbids.
        clean = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                [program("ipc-cached"), "--dir", self.directory],
                env=clean, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        wait_until(lambda: " ready: " in self.log or self.process.poll() is not None, "the broker")
        assert self.process.poll() is None, self.log
        self.fds = self.fd_count()

    @property
    def log(self):
        with open(self.log_path, errors="replace") as file:
            return file.read()

    def fd_count(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def check_and_stop(self):
        """Nothing is left of any test: no lease, no connection, no fd."""
        import ipc_cache

        with ipc_cache.Client(self.directory) as client:
            wait_until(lambda: client.stat()["leases"] == 0, f"no lease to be left: {client.models()}")
            for model in client.models():
                if model.state == "ready":
                    client.evict(model.key_id, key=model.key)
            assert client.models() == []
        wait_until(lambda: self.fd_count() <= self.fds, "the broker to close its fds")
        self.stop()

    def stop(self):
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0, self.log
        assert "ERROR" not in self.log and "Sanitizer" not in self.log, self.log

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def age(path):
    """Files younger than two seconds cannot be told by their metadata."""
    then = time.time() - 3600
    os.utime(path, (then, then))
    return str(path)


def write_safetensors(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}; written without the safetensors package."""
    entries, at = {}, 0
    for name, (dtype, shape, content) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(content)]}
        at += len(content)
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for _, _, content in tensors.values():
            file.write(content)
    return age(path)


def small_checkpoint(folder, name="model"):
    """A folder with a checkpoint: its path, and the tensors as floats."""
    values = {"embed.weight": list(range(12)), "head.bias": [0.5, -1.5]}
    root = os.path.join(folder, name)
    os.makedirs(root, exist_ok=True)
    content = {k: array.array("f", v).tobytes() for k, v in values.items()}
    write_safetensors(
        os.path.join(root, "model.safetensors"),
        {"embed.weight": ("F32", (3, 4), content["embed.weight"]), "head.bias": ("F32", (2,), content["head.bias"])},
    )
    return root, values


def start_python(code, directory, **environment):
    """Another process that runs `code`; its standard output is a pipe."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "IPC_CACHE_DIR": directory, **environment},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run_python(code, directory, status=0, **environment):
    """What it printed on standard output and on standard error."""
    with start_python(code, directory, **environment) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == status, (process.returncode, out, err)
    return out, err


@contextlib.contextmanager
def running(code, directory, **environment):
    """A process that has printed its first line, which is `process.said`; killed at the end."""
    process = start_python(code, directory, **environment)
    try:
        process.said = process.stdout.readline().strip()
        assert process.said, process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def forked(function):
    """A forked child that runs function(); yields a function that waits for its end and checks that it went well."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            function()
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)
    ended = []

    def finish():
        ended.append(os.waitpid(pid, 0)[1])
        assert ended[0] == 0, f"the child ended with status {ended[0]}"

    try:
        yield finish
    finally:
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
