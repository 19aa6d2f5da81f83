"""A server that is started again when it dies, by a process that has imported vLLM: `ipc-cache-serve --standby`.

With attached weights most of a restart is Python's imports. The standby process makes them once and holds nothing else: no
device, no weights, no socket, and one thread, so it can fork. The server is its child, and the leader of a process group;
when it ends, what is left of that group is killed before the next one is forked.

A server that ends in order, or whose arguments are wrong, is not started again, nor is one that keeps ending soon after its
start. SIGTERM and SIGINT are passed on to the server, whose end is then the end. A server whose standby is killed gets
SIGTERM from the kernel.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

_USAGE = 2  # argparse's exit status
_SOON_SECONDS = 30.0  # who ends within this time has not served
_ATTEMPTS = 3  # of servers in a row that ended soon
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

logger = logging.getLogger("vllm.ipc_cache")


def supervise(serve: Callable[[], None], soon: float = _SOON_SECONDS) -> int:
    """Runs `serve` in a forked child, again and again, until it ends in order; returns the exit status for the caller, as a
    shell tells it: 128 and the signal's number for a server that one ended. Main thread only."""
    child = _Child(serve)
    failures = 0
    while True:
        begun = time.monotonic()
        code = child.run()
        failures = failures + 1 if time.monotonic() - begun < soon else 0
        if child.told or code in (0, _USAGE):
            return code
        how = f"status {code}" if code < 128 else f"signal {code - 128}"
        if failures == _ATTEMPTS:
            logger.error("ipc_cache: the server ended soon after its start %d times, at last with %s", failures, how)
            return code
        logger.warning("ipc_cache: the server has ended (%s); it is started again", how)


class _Child:
    """One server after the other. told: a signal asked for the end."""

    def __init__(self, serve: Callable[[], None]) -> None:
        self.serve, self.pid, self.told = serve, 0, False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, _frame: object) -> None:
        self.told = True
        if self.pid:
            os.kill(self.pid, number)

    def run(self) -> int:
        """Its exit status, when nothing is left of its group. In the child it does not return: whatever ends the server
        goes on to the interpreter, as if there were no standby."""
        signals = {signal.SIGTERM, signal.SIGINT}
        # One that comes while there are two processes must not be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        if self.told:
            return 128 + signal.SIGTERM
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            _become_server(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            self.serve()
            sys.exit()
        self.pid = pid
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        # Not reaped yet, so that its number is nobody else's while its group is killed.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with suppress(ProcessLookupError):  # it ended before it made a group
            os.killpg(pid, signal.SIGKILL)
        self.pid = 0
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code if code >= 0 else 128 - code


def _become_server(parent: int) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the kernel was told
        sys.exit()


def import_server() -> None:
    """What a server and its engine core import. The core is forked from the server, unless the environment says otherwise:
    vLLM's server would spawn it, and import everything anew."""
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    import vllm.entrypoints.openai.api_server
    import vllm.v1.engine.async_llm
    import vllm.v1.engine.core  # noqa: F401

    from ipc_cache.vllm import startup

    startup.preload()
