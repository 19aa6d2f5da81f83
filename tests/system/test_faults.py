"""Any system call may fail: the command says so and leaves nothing behind, the broker goes on serving.

Faults come from tests/fault/fault.c, preloaded: the N-th call of one function fails. Each case runs N = 1, 2, ... until the
fault is no longer reached, so that every call of that function has failed once.
"""
import contextlib
import errno
import os
import pathlib

import harness
import pytest
from models import Kept
from protocol import LOST, Closed, Failure

BUILD = pathlib.Path(os.environ.get("IPC_CACHE_BUILD", "build")).resolve()

FAULTS = [
    ("memfd_create", errno.EMFILE), ("memfd_create", errno.ENOMEM), ("fallocate", errno.ENOSPC),
    ("mmap", errno.ENOMEM), ("pread", errno.EIO), ("pwrite", errno.ENOSPC), ("socket", errno.EMFILE),
    ("sendmsg", errno.ENOBUFS), ("recvmsg", errno.ENOMEM), ("getsockopt", errno.EPERM), ("fcntl", errno.EINVAL),
    ("malloc", errno.ENOMEM), ("calloc", errno.ENOMEM), ("realloc", errno.ENOMEM),
]
# The broker allocates nothing that large; and libseccomp 2.5, at its start, does not survive a failing realloc.
BROKER_FAULTS = [fault for fault in FAULTS if fault[0] not in ("socket", "fallocate", "realloc")] + [
    ("epoll_ctl", errno.ENOMEM), ("accept4", errno.EMFILE), ("accept4", errno.ENFILE)]
MOST = 60  # calls of one function that are tried


@pytest.fixture
def fault(binaries, folder):
    """fault(function, n, errno): what to put before a command, and whether the fault was reached."""
    if binaries.sanitized:
        pytest.skip("a sanitizer's allocator cannot be preloaded over")
    library = BUILD / "tests" / "fault.so"
    assert library.exists(), f"{library} is missing: make test-system builds it"
    log = folder / "fault.log"

    class Fault:
        def __init__(self, function, number, code):
            log.unlink(missing_ok=True)
            self.prefix = ["env", f"LD_PRELOAD={library}", f"IPC_CACHE_FAULT={function}:{number}:{code}",
                           f"IPC_CACHE_FAULT_LOG={log}"]

        @property
        def reached(self):
            return log.exists()

    return Fault


@pytest.mark.parametrize("function, code", FAULTS)
def test_a_load_that_fails_anywhere_says_so_and_leaves_nothing(broker, small, fault, function, code):
    reached = 0
    for number in range(1, MOST):
        injected = fault(function, number, code)
        result = broker.cli("load", small, prefix=injected.prefix)
        assert result.status in (0, 1, 5, 6, 7), result
        if result.status == 0:  # what failed, if anything, was not needed: the model must be right
            broker.cli("verify", "small", expect=0)
            broker.cli("evict", "small", expect=0)
        else:
            assert result.err.startswith("ipc-cache") and len(result.err) > 20, result
            if function == "recvmsg":  # the reply to COMMIT was lost: whole, or not there at all
                broker.evict_all()
        broker.becomes_empty()
        if not injected.reached:
            break
        reached += 1
    assert reached > 0, f"{function} is not called at all"


@pytest.mark.parametrize("function, code", FAULTS)
def test_an_attach_that_fails_anywhere_says_so_and_holds_nothing(broker, resident, fault, function, code):
    for number in range(1, MOST):
        injected = fault(function, number, code)
        result = broker.cli("attach", "small", prefix=injected.prefix)
        if not injected.reached:
            break
        assert result.status in (0, 1, 5, 6, 7), result
        assert broker.models()[0]["leases"] == 0
    assert broker.serves()


def use(broker, small):
    """What a broker is for; any step may be refused, and any connection may end."""
    for words in ("load", small, "--name", "small"), ("attach", "small"), ("ls",), ("stat",), ("evict", "small", "--force"):
        broker.cli(*words)


def keep(broker, small):
    """The same for a model that a process keeps until it ends."""
    with contextlib.suppress(Failure, Closed, OSError), broker.connect() as keeper:
        Kept().publish(keeper)
        with contextlib.suppress(Failure, Closed, OSError), broker.connect() as holder:
            holder.attach("kept").close()
            keeper.close()
            assert holder.receive().type == LOST
    with contextlib.suppress(Failure, Closed, OSError), broker.connect() as late:
        late.attach("kept").close()
        raise AssertionError("its keeper has ended")


@pytest.mark.parametrize("using", [use, keep])
@pytest.mark.parametrize("function, code", BROKER_FAULTS)
def test_a_broker_in_which_a_call_fails_goes_on_serving(binaries, folder, small, fault, function, code, using):
    for number in range(1, MOST):
        injected = fault(function, number, code)
        broker = harness.Broker(binaries, str(folder / f"broker-{number}"), prefix=tuple(injected.prefix))
        broker.launch()
        harness.wait_until(lambda: " ready: " in broker.log or broker.process.poll() is not None, "the broker's start")
        try:
            if broker.process.poll() is not None:  # it failed before it was ready, and said why
                assert injected.reached and broker.log.startswith("ipc-cached: "), broker.log
                continue
            broker.pid = broker.process.pid
            using(broker, small)
            for step in broker.serves, broker.evict_all, broker.becomes_empty:
                try:
                    step()
                except (Failure, Closed, BrokenPipeError):  # the one fault may hit this very connection; not the next one
                    step()
            broker.stop()
        finally:
            broker.kill()
        if not injected.reached:
            return


def test_a_broker_without_any_fd_left_turns_connections_away_and_recovers(start_broker, fault):
    injected = fault("accept4", 3, errno.EMFILE)
    broker = start_broker(prefix=injected.prefix)
    turned_away = 0
    for _ in range(6):
        try:
            with broker.connect() as client:
                client.ping()
        except (Failure, Closed, BrokenPipeError) as refused:
            turned_away += 1
            assert "out of file descriptors" in str(refused)
    assert turned_away == 1 and broker.serves()
