"""The publishers' lock of the vLLM plugin: one loads, the others wait for it, and say so. Needs no vLLM."""

import logging
import os
import signal

import pytest

from ipc_cache.vllm import lock

from harness import running

FIELDS = {"model": "/models/x", "role": "target"}

HOLDER = """
    import os, signal, time
    from ipc_cache.vllm import lock
    with lock.only_one({"model": "/models/x", "role": "target"}, 0):
        child = os.fork()  # as a compiler's worker: it outlives whom it was forked by
        if child:
            print(child, flush=True)
        signal.pause()
"""


@pytest.fixture
def holder(tmp_path, monkeypatch, caplog):
    """Another process that has the lock."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    caplog.set_level(logging.INFO, "vllm.ipc_cache")
    with running(HOLDER, "", XDG_RUNTIME_DIR=str(tmp_path)) as process:
        yield process
        os.kill(int(process.said), signal.SIGKILL)


def test_a_dead_holder_is_waited_for_no_longer(holder, monkeypatch, caplog):
    """Though a process that it forked lives on; and what is waited for is said once, however often one looks."""
    rounds = []

    def sleep(seconds):
        rounds.append(seconds)
        assert len(rounds) < 10, "the lock is not free"
        if len(rounds) == 3:
            holder.kill()
            holder.wait()

    monkeypatch.setattr(lock.time, "sleep", sleep)
    with lock.only_one(FIELDS, 0):
        os.kill(int(holder.said), 0)  # it is there
    assert len(rounds) == 3
    assert [record.getMessage() for record in caplog.records] == [
        f"ipc_cache: process {holder.pid} loads /models/x already; waiting until it is published"
    ]


def test_waiting_ends_when_the_option_says(holder):
    with pytest.raises(lock.Waited, match=rf'process {holder.pid} loads /models/x .* within 0\.1 s .*"wait"'):
        with lock.only_one(FIELDS, 0.1):
            pytest.fail("two have the lock")


def test_other_keys_and_nobody_wait(holder, caplog):
    with lock.only_one({**FIELDS, "role": "draft"}, 0.1):
        pass
    assert caplog.records == []


def test_a_file_that_cannot_be_a_lock(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with lock.only_one(FIELDS, 0):
        (made,) = tmp_path.iterdir()
    made.unlink()
    made.symlink_to("/dev/null")
    with pytest.raises(lock.Unlockable, match="cannot be locked .*remove it"):
        with lock.only_one(FIELDS, 0):
            pass
