"""A server that is started again when it dies, by a process that has imported vLLM: `ipc-cache-serve --standby`.

With attached weights most of a restart is Python's imports. The standby process makes them once and holds nothing else: no
device, no weights, no socket, and no thread of Python's, so it can fork. The server is its child, and the leader of a
process group. When it ends, what is left of that group is killed, and the next one is forked when all of it has ended:
memory of a GPU is given back by then.

Whatever a server ends with, it is started again, since vLLM's ends with 0, too, when its engine has died. Exceptions are
argparse's status for wrong arguments, a server that keeps ending soon after its start, and SIGTERM or SIGINT to the
standby: they are passed on to the server, whose end is the end then. A server whose standby is killed gets SIGTERM from
the kernel.
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
_SOON_SECONDS = 30.0  # who fails later than that is started again for as long as it goes on
_ATTEMPTS = 3  # of servers in a row that ended soon
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h

logger = logging.getLogger("vllm.ipc_cache")


def supervise(serve: Callable[[], None], soon: float = _SOON_SECONDS) -> int:
    """Runs `serve` in a forked child, again and again, until one of the exceptions above; returns the exit status for the
    caller, as a shell tells it: 128 and the signal's number for a server that one ended. Main thread only, in a process
    whose children are all its own: those that lose their parent become its children, too."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = _Child(serve)
    failures = 0
    while True:
        begun = time.monotonic()
        code = child.run()
        failures = failures + 1 if time.monotonic() - begun < soon else 0
        if child.told or code == _USAGE:
            return code
        how = f"status {code}" if code < 128 else f"signal {code - 128}"
        if failures == _ATTEMPTS:
            logger.error("ipc_cache: the server ended soon after its start %d times, at last with %s", failures, how)
            return code
        logger.warning("ipc_cache: the server has ended (%s); it is started again", how)


class _Child:
    """One server after the other. told: the signal that asked for the end, or 0."""

    def __init__(self, serve: Callable[[], None]) -> None:
        self.serve, self.pid, self.told = serve, 0, 0
        for number in _SIGNALS:
            signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, _frame: object) -> None:
        self.told = number
        if self.pid:
            os.kill(self.pid, number)

    def run(self) -> int:
        """Its exit status, when nothing is left of its group. In the child it does not return: whatever ends the server
        goes on to the interpreter, as if there were no standby."""
        # A signal that comes while there are two processes must not be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        if self.told:
            return 128 + self.told
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            _become_server(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            self.serve()
            sys.exit()
        self.pid = pid
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        # Not reaped yet, so that its number is nobody else's while its group is killed.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with suppress(ProcessLookupError):  # it ended before it made a group
            os.killpg(pid, signal.SIGKILL)
        self.pid = 0
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        _reap(pid)
        return code if code >= 0 else 128 - code


def _reap(group: int) -> None:
    """Returns when all of the group have ended; they lost their parent, and are this process's children now. Others that
    ended meanwhile are reaped, too: as a container's first process nobody else would."""
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-group, 0)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _become_server(parent: int) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the kernel was told
        sys.exit()


def _prctl(option: int, value: int) -> None:
    """Both options have been there since Linux 3.4, and take any such value."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def import_server() -> None:
    """What a server and its engine core import. The core is forked from the server, unless the environment says otherwise:
    vLLM's server would spawn it, and import everything anew."""
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    import torch
    import vllm.entrypoints.openai.api_server
    import vllm.v1.engine.async_llm
    import vllm.v1.engine.core  # noqa: F401

    from ipc_cache.vllm import startup

    startup.preload()
    if torch.cuda.is_initialized():
        logger.warning(
            "ipc_cache: what this vLLM imports initialises CUDA; engine cores will be spawned, and import again"
        )
