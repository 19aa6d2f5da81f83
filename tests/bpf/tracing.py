"""The tool and bpftrace as processes: started, ready, ended."""
import contextlib
import ctypes
import json
import os
import pathlib
import re
import signal
import subprocess
import time

from harness import PATIENCE, Result, check_clean, wait_until


class Running:
    def __init__(self, process):
        self.process = process
        self.result = None

    def end(self):
        """What it printed, after Ctrl-C if it has not ended by itself."""
        for _ in range(5):
            if self.result is not None:
                break
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGINT)
            # bpftrace 0.17 now and then does not hear the first.
            with contextlib.suppress(subprocess.TimeoutExpired):
                out, err = self.process.communicate(timeout=PATIENCE / 5)
                self.result = Result(self.process.returncode, out, err.decode(errors="replace"))
        assert self.result is not None, "it does not end"
        return self.result

    def wait(self):
        """What it printed, when it ends by itself."""
        out, err = self.process.communicate(timeout=2 * PATIENCE)
        self.result = Result(self.process.returncode, out, err.decode(errors="replace"))
        return self.result


class Lat:
    """ipc-cache-lat."""

    def __init__(self, path, cli):
        self.path, self.cli = str(path), str(cli)

    def command(self, *args, prefix=()):
        return [*map(str, prefix), self.path, "--file", self.cli, *map(str, args)]

    def __call__(self, *args, prefix=(), expect=None, **options):
        done = subprocess.run(self.command(*args, prefix=prefix), stdin=subprocess.DEVNULL, capture_output=True, check=False,
                              timeout=PATIENCE, **options)
        result = Result(done.returncode, done.stdout, done.stderr.decode(errors="replace"))
        check_clean(result.err)
        if expect is not None:
            assert result.status == expect, result
        return result

    @contextlib.contextmanager
    def following(self, *args, prefix=()):
        """Started, attached to all probes, and ended at the end."""
        with subprocess.Popen(self.command(*args, prefix=prefix), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            try:
                line = process.stderr.readline().decode()
                assert "following" in line, line + process.stderr.read().decode()
                running = Running(process)
                yield running
                running.end()
                check_clean(running.result.err)
            finally:
                if process.poll() is None:
                    process.kill()


def perf_events(pid):
    """How many perf events a process has open."""
    count = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            count += "perf_event" in os.readlink(f"/proc/{pid}/fd/{fd}")
    return count


class Script:
    """One bpftrace script: what its head says, and how to run it."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.text = self.path.read_text()
        head = re.match(r"#!/usr/bin/env bpftrace\n/\*\n(.*?)\*/", self.text, re.S).group(1)
        self.head = re.sub(r"^ \* ?", "", head, flags=re.M)

    def sample(self):
        """The lines below its command."""
        return re.split(r"^# bpftrace .*$", self.head, flags=re.M)[1].strip("\n").splitlines()

    @contextlib.contextmanager
    def running(self, *args):
        command = ["bpftrace", str(self.path), *map(str, args)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                line = process.stdout.readline().decode()
                assert line.startswith("Attaching"), line + process.stderr.read().decode()
                probes = int(line.split()[1])
                wait_until(lambda: process.poll() is not None or perf_events(process.pid) >= probes, "bpftrace to attach")
                time.sleep(1)  # the last of them
                running = Running(process)
                yield running
                running.end()
            finally:
                if process.poll() is None:
                    process.kill()


def shape(line):
    """A line with its numbers and names of this run made equal."""
    line = re.sub(r"\|[@ ]*\|", "|", line)
    line = re.sub(r"\b\d+[KMG]?\b", "0", line)
    return re.sub(r"\s+", " ", line).strip()


def document(result):
    return json.loads(result.out)


LIBC = ctypes.CDLL(None, use_errno=True)


def forbid_bpf():
    """For preexec_fn: bpf(2) answers EINVAL from now on, as of a kernel that knows none of what is asked for."""
    class Filter(ctypes.Structure):
        _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]

    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    steps = (Filter * 4)(Filter(0x20, 0, 0, 0), Filter(0x15, 0, 1, number), Filter(0x06, 0, 0, 0x00050000 | 22),
                         Filter(0x06, 0, 0, 0x7FFF0000))
    LIBC.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    if LIBC.prctl(22, 2, ctypes.byref(Program(4, steps)), 0, 0) != 0:  # PR_SET_SECCOMP
        raise OSError(ctypes.get_errno(), "seccomp")
