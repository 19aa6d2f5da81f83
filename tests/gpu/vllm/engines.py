"""A broker, and engines as children of one process that has imported vLLM: what `run` is made of."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PATIENCE = float(os.environ.get("IPC_CACHE_PATIENCE", "150"))
FORMAT = "ipc_broker"


def running():
    """Processes that are not zombies: their group by their id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = path.read_text().rsplit(")", 1)[1].split()[:3]
        except OSError:  # it has ended meanwhile
            continue
        if state != "Z":
            found[int(path.parent.name)] = int(group)
    return found


class Failed(Exception):
    """The child's own error, and those that caused it."""


class Broker:
    def __init__(self, programs, folder):
        self.programs, self.folder = Path(programs), Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen([self.programs / "ipc-cached", "--dir", self.folder / "broker"])
        end = time.monotonic() + 20
        while self.cli("ping", check=False).returncode != 0:
            if time.monotonic() > end or self.process.poll() is not None:
                raise Failed("the broker did not start")
            time.sleep(0.01)

    @property
    def directory(self):
        return str(self.folder / "broker")

    def cli(self, *words, check=True):
        return subprocess.run([self.programs / "ipc-cache", "--dir", self.directory, *words], check=check,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def models(self):
        return json.loads(self.cli("ls", "--json").stdout)["models"]

    def idle(self):
        """The models, as soon as nobody has a lease: whoever is killed is missed a moment later."""
        end = time.monotonic() + 5
        while any(model["leases"] for model in self.models()) and time.monotonic() < end:
            time.sleep(0.01)
        return self.models()

    def evict_all(self):
        for model in self.models():
            self.cli("evict", "--force", model["key_id"])

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()


class Host:
    """host.py."""

    def __init__(self, folder, environment, preload):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.count = 0
        self.logging = self._logging()
        environment = {**environment, "VLLM_LOGGING_CONFIG_PATH": str(self.logging)}
        log = open(self.folder / "host.log", "w", encoding="utf-8")
        self.process = subprocess.Popen([sys.executable, HERE / "host.py", *(["preload"] if preload else [])], env=environment,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    def _logging(self):
        """vLLM's own form of a log line, with milliseconds: what a start does can be told by its lines. The file's path."""
        line = {"class": "vllm.logging_utils.NewLineFormatter", "datefmt": "%Y-%m-%dT%H:%M:%S",
                "format": "%(levelname)s %(asctime)s.%(msecs)03d [%(fileinfo)s:%(lineno)d] %(message)s"}
        path = self.folder.resolve() / "logging.json"
        path.write_text(json.dumps({
            "version": 1, "disable_existing_loggers": False, "formatters": {"vllm": line},
            "handlers": {"vllm": {"class": "logging.StreamHandler", "formatter": "vllm", "stream": "ext://sys.stdout"}},
            "loggers": {"vllm": {"handlers": ["vllm"], "level": "INFO", "propagate": False}}}))
        return path

    def ready(self):
        """Seconds that importing vLLM took."""
        line = self.process.stdout.readline()
        if not line:
            raise Failed("vLLM could not be imported: " + (self.folder / "host.log").read_text()[-2000:])
        return float(line)

    def fork(self, name, function, environment, **arguments):
        self.count += 1
        log = self.folder / f"{self.count:02d}-{name}.log"
        path = f"/tmp/ipc-cache-job-{os.getpid()}-{self.count}"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(1)
        listener.settimeout(PATIENCE)
        request = {"function": function, "arguments": {"peer": path, **arguments}, "environment": environment, "log": str(log)}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        pid = int(self.process.stdout.readline())
        try:
            peer = listener.accept()[0]
        except TimeoutError:
            raise Failed(f"{name} did not begin: {log.read_text()[-2000:]}") from None
        finally:
            listener.close()
            os.unlink(path)
        return Job(pid, peer, log)

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


class Job:
    """A child; calls are answered in order."""

    def __init__(self, pid, peer, log):
        self.pid, self.log = pid, log
        peer.settimeout(PATIENCE)
        self.peer, self.lines = peer, peer.makefile("rw")

    def result(self):
        line = self.lines.readline()
        if not line:
            raise Failed("ended: " + self.text()[-2000:])
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["result"]

    def ask(self, do, **arguments):
        self.lines.write(json.dumps({"do": do, **arguments}) + "\n")
        self.lines.flush()

    def call(self, do, **arguments):
        self.ask(do, **arguments)
        return self.result()

    def text(self):
        return self.log.read_text(errors="replace")

    def said(self, pattern):
        """The first number that the log says after a pattern, or None."""
        found = re.search(pattern, self.text())
        return float(found.group(1)) if found else None

    def processes(self):
        """Ids of the child and of all that it has started and that still run: engine core and workers."""
        return [pid for pid, group in running().items() if group == self.pid]

    def memory(self):
        """Resident bytes of all of them: (Rss, Pss, Private_Dirty) of smaps_rollup."""
        text = "".join(Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self.processes())
        return [1024 * sum(map(int, re.findall(rf"^{name}: +(\d+) kB", text, re.M))) for name in ("Rss", "Pss", "Private_Dirty")]

    def kill(self):
        """All processes of the child, with SIGKILL."""
        os.killpg(self.pid, signal.SIGKILL)
        self._gone()

    def close(self):
        self.lines.close()
        self.peer.close()
        self._gone()

    def _gone(self):
        end = time.monotonic() + 60
        while self.processes():
            if time.monotonic() > end:
                os.killpg(self.pid, signal.SIGKILL)
            time.sleep(0.005)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None and self.processes():
            self.kill()  # what it was to do is over, or did not work
        elif self.processes():
            self.close()
