"""What the engine tests stand on: a broker, engines as child processes, and comparisons of what they say."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / os.environ.get("IPC_CACHE_BUILD", "build")
PATIENCE = 900  # seconds, after which something hangs; on two busy cores an engine takes its time


class EngineFailed(Exception):
    """The engine did not start, or a request failed; the text is its own error and those that caused it."""


def plugin_folder(folder):
    """Distributions that make both plugins known to vLLM, as installed packages would; nothing is installed."""
    for name, target in (("ipc_cache_test", "ipc_cache.vllm.register:register"), ("control_test", "control:register")):
        info = Path(folder) / f"{name}-0.1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
        (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {target}\n")
    return Path(folder)


def environment(plugins, cache, **more):
    """For every process of a test: no network, no plugins but ours, caches that are the session's own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "IPC_CACHE_"))}
    return {
        **kept,
        "PYTHONPATH": f"{plugins}:{ROOT / 'python'}:{HERE}",
        "IPC_CACHE_LIBRARY": str(BUILD / "libipc_cache.so"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CACHE_ROOT": str(cache),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        **more,
    }


class Broker:
    """`ipc-cached` in a directory of its own."""

    def __init__(self, folder, *arguments):
        self.folder, self.arguments, self.process = Path(folder), arguments, None
        self.start()

    def start(self):
        self.process = subprocess.Popen([BUILD / "ipc-cached", "--dir", self.folder, *self.arguments])
        deadline = time.monotonic() + PATIENCE
        while self.command("ping", check=False).returncode != 0:
            assert time.monotonic() < deadline and self.process.poll() is None, "the broker did not start"
            time.sleep(0.02)

    def command(self, *arguments, check=True):
        return subprocess.run(
            [BUILD / "ipc-cache", "--dir", self.folder, *arguments], check=check, capture_output=True, text=True
        )

    def models(self):
        return json.loads(self.command("ls", "--json").stdout)["models"]

    def of(self, path, **fields):
        """The resident models of a folder with these key fields."""
        wanted = {"model": str(path), **fields}
        return [m for m in self.models() if all(m["key"].get(name) == value for name, value in wanted.items())]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Host:
    """host.py, once for a session."""

    def __init__(self, environment):
        self.environment = environment
        self.process = subprocess.Popen(
            [sys.executable, HERE / "host.py"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "ready\n", "vLLM could not be imported"

    def fork(self, log, function, *arguments, **environment):
        request = {"environment": environment, "log": str(log), "function": function, "arguments": arguments}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def alive(pid):
    return Path(f"/proc/{pid}").exists()


def gone(pid):
    """Waits for a process's end."""
    deadline = time.monotonic() + PATIENCE
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} does not end"
        time.sleep(0.02)


class Engine:
    """An engine of a test; starting() returns at once, ready() waits for it."""

    def __init__(self, host, folder, options, **environment):
        self.log = Path(tempfile.mkstemp(dir=folder, suffix=".log")[1])
        path = f"{self.log}.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(1)
        listener.settimeout(PATIENCE)
        self.pid = host.fork(self.log, "job:serve", {"socket": path, "options": options}, **environment)
        self.peer = listener.accept()[0]
        listener.close()
        self.peer.settimeout(PATIENCE)
        self.lines = self.peer.makefile("rw")

    def ready(self):
        self._answer()
        return self

    def _answer(self):
        line = self.lines.readline()
        if not line:
            raise EngineFailed(f"the engine ended; its log says: {self.text()[-2000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineFailed(answer["error"])
        return answer

    def ask(self, do, **arguments):
        """Sends a request without waiting for the answer."""
        self.lines.write(json.dumps({"do": do, **arguments}) + "\n")
        self.lines.flush()

    def __getattr__(self, name):
        def call(**arguments):
            self.ask(name, **arguments)
            return self._answer()["result"]

        return call

    def text(self):
        return self.log.read_text(errors="replace")

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        self._gone()

    def close(self):
        self.lines.close()
        self.peer.close()
        self._gone()

    def _gone(self):
        deadline = time.monotonic() + PATIENCE
        while alive(self.pid):
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
