"""Real processes: a private broker, the command, children; and waiting for things to come true."""
import contextlib
import json
import os
import resource
import signal
import subprocess
import time
from dataclasses import dataclass, field

import pytest

from protocol import FORCE, READY, Client, Failure
from users import connect_as

PATIENCE = float(os.environ.get("IPC_CACHE_PATIENCE", "45"))  # seconds until what is waited for counts as never coming


def wait_until(condition, what, seconds=PATIENCE, every=0.003):
    """Polls until the condition holds; returns what it gave."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(every)


@dataclass
class Result:
    status: int
    out: bytes
    err: str

    @property
    def text(self):
        return self.out.decode()

    @property
    def json(self):
        return json.loads(self.out)


def check_clean(stderr):
    """No sanitizer has spoken."""
    for word in ("Sanitizer", "runtime error:"):
        assert word not in stderr, stderr


class Binaries:
    def __init__(self, broker, cli):
        self.broker, self.cli = str(broker), str(cli)
        with open(broker, "rb") as file:
            self.sanitized = b"__asan_" in file.read()


class Cli:
    """The command `ipc-cache`, pointed at one directory."""

    def __init__(self, binaries, directory):
        self.binaries, self.directory = binaries, str(directory)

    def command(self, *args, prefix=(), directory=None):
        return [*prefix, self.binaries.cli, "--dir", str(directory or self.directory), *map(str, args)]

    def __call__(self, *args, prefix=(), stdin=None, timeout=120, expect=None, directory=None, cwd=None):
        done = subprocess.run(self.command(*args, prefix=prefix, directory=directory), stdin=stdin or subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, check=False, cwd=cwd)
        result = Result(done.returncode, done.stdout, done.stderr.decode(errors="replace"))
        check_clean(result.err)
        if expect is not None:
            assert result.status == expect, result
        return result

    @contextlib.contextmanager
    def running(self, *args, prefix=(), stdin=subprocess.PIPE):
        """Started and left running; killed at the end if the test has not ended it."""
        process = subprocess.Popen(self.command(*args, prefix=prefix), stdin=stdin, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.send_signal(signal.SIGCONT)
            check_clean(finish(process).err)

    @contextlib.contextmanager
    def holding(self, model, *args, prefix=()):
        """A process that is attached, and stays so until told or killed."""
        with self.running("attach", model, "--hold", "--json", *args, prefix=prefix) as process:
            document, line = b"", None
            while line != b"}\n":
                line = process.stdout.readline()
                assert line, process.stderr.read().decode()
                document += line
            process.facts = json.loads(document)
            yield process


def finish(process, timeout=PATIENCE):
    """Waits for its end; what it printed since."""
    if getattr(process, "result", None) is None:
        if process.stdin is not None and process.stdin.closed:
            process.stdin = None
        out, err = process.communicate(timeout=timeout)
        process.result = Result(process.returncode, out, err.decode(errors="replace"))
    return process.result


@dataclass
class Broker:
    """One ipc-cached in a directory of its own."""

    binaries: Binaries
    directory: str
    config: str = ""  # the INI file's text
    prefix: tuple = ()  # what to run it through
    user: tuple = ()  # what to run the command through at the end, if the broker is no broker of root's
    leaves_models: bool = False  # the test ends with models resident
    process: subprocess.Popen = field(default=None, repr=False)

    def __post_init__(self):
        self.cli = Cli(self.binaries, self.directory)
        self.log_path = self.directory + ".log"

    @property
    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def launch(self):
        command = [*self.prefix, self.binaries.broker, "--dir", self.directory]
        if self.config:
            path = self.directory + ".ini"
            with open(path, "w", encoding="utf-8") as file:
                file.write(self.config)
            command += ["--config", path]
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self):
        self.launch()
        wait_until(lambda: " ready: " in self.log or self.process.poll() is not None, "the broker's ready line")
        assert self.process.poll() is None, self.log
        self.pid = self._find_pid()
        self.fds_at_start = self.fd_count()
        return self

    def _find_pid(self):
        """Of the broker itself, where a program that forks runs it."""
        pid = self.process.pid
        while os.path.basename(os.readlink(f"/proc/{pid}/exe")) != "ipc-cached":
            with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
                pid = int(file.read().split()[0])
        return pid

    def signal(self, number):
        os.kill(self.pid, number)

    def fd_count(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def connect(self, **options):
        return Client.connect(self.directory, **options)

    def stat(self):
        with self.connect() as client:
            return client.stat()

    def models(self):
        with self.connect() as client:
            return client.list()

    def serves(self):
        """It still answers, new connections too."""
        with self.connect() as client:
            client.ping()
        return True

    def is_empty(self):
        """Nothing of any model is left in it."""
        stat = self.stat()
        return (stat["models"], stat["loading"], stat["bytes"], stat["fds"], stat["leases"]) == (0, 0, 0, 0, 0)

    def becomes_empty(self):
        wait_until(self.is_empty, "the broker to hold nothing")
        return True

    def evict_all(self):
        for model in self.models():
            if model["state"] != READY:
                continue
            # Of equal keys everybody has its own nearest: each owner evicts what it has.
            own = model["owner_uid"] == os.geteuid()
            with self.connect() if own else connect_as(model["owner_uid"], self.directory) as client:
                client.evict(model["key_id"], FORCE, key=model["key"])

    def rss_kib(self):
        with open(f"/proc/{self.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))

    def cpu_ticks(self):
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
            return sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))

    def check_and_stop(self):
        """The end of every test: nothing left, nothing leaked, nothing said that should worry anybody."""
        assert self.process.poll() is None, f"the broker died: {self.process.returncode}\n{self.log}"
        self.signal(signal.SIGCONT)
        if self.leaves_models:
            self.evict_all()
        listing = self.cli("ls", "--json", prefix=self.user, expect=0).json["models"]
        wait_until(lambda: self.models() == [], f"no model to be left: {listing}")
        wait_until(lambda: self.fd_count() <= self.fds_at_start, "the broker to close its fds")
        self.stop()

    def stop(self):
        self.signal(signal.SIGTERM)
        status = self.process.wait(PATIENCE)
        assert status == 0, f"the broker's exit status is {status}:\n{self.log}"
        check_clean(self.log)
        assert "ERROR" not in self.log

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.send_signal(signal.SIGCONT)
            self.process.wait()  # unshare is told to take its child along


def failing_start(binaries, directory, config="", prefix=()):
    """A broker that must not start: its exit status and what it says."""
    broker = Broker(binaries, str(directory), config=config, prefix=tuple(prefix))
    broker.log_path = str(directory) + ".second.log"
    broker.launch()
    try:
        status = broker.process.wait(PATIENCE)
        return status, broker.log
    finally:
        broker.kill()


def turned_away(sock):
    """What the broker says to a connection that it does not take."""
    with contextlib.closing(Client(sock, greet=False)) as client:
        failure = client.last_words()
    assert failure is not None, "turned away without a reason"
    return failure


def refused(call, *arguments, **options):
    """What the broker says when it refuses this."""
    with pytest.raises(Failure) as caught:
        call(*arguments, **options)
    return caught.value


def told(client):
    """The type of the next event."""
    message = client.receive()
    assert message.request == 0 and message.body == b"" and message.fds == []
    return message.type


@contextlib.contextmanager
def child(function):
    """A forked process that runs function(ready): yields its pid once it has called ready(), and kills it at the end.

    ready() never returns, so that everything the function has opened stays open.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)

            def ready():
                os.write(writer, b".")
                while True:
                    signal.pause()

            function(ready)
        finally:
            os._exit(1)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as file:
            assert file.read(1) == b".", "the child failed before it was ready"
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def raise_fd_limit():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
