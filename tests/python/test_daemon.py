"""`python3 -m ipc_cache.daemon`, ended at the worst moment. A process that loads a small file stands in for vLLM; with
vLLM it is tested in tests/engines."""

import contextlib
import os
import signal
import textwrap

import pytest

import ipc_cache

from harness import PATIENCE, start_python, wait_until

DAEMON = """
    import os, signal, subprocess, sys
    from ipc_cache import daemon
    os.environ.pop("LD_PRELOAD", None)  # a sanitizer that this Python was started with: not in the broker's sandbox
    daemon.PUBLISHER = "publisher"
    class Popen(subprocess.Popen):
        def __init__(self, command, **options):
            super().__init__(command, **options)
            with open(os.environ["STARTED"], "a") as file:
                print(self.pid, file=file)
            if os.environ.get("SIGNAL_AT") in command:
                os.kill(os.getpid(), signal.SIGTERM)  # before anybody could note the process
    subprocess.Popen = Popen
    sys.exit(daemon.main(["--model", os.environ["MODEL"]]))
"""

# What a rank leaves: a resident model, and a report of it.
PUBLISHER = """
    import json, os, time
    import ipc_cache
    made = ipc_cache.load(os.environ["MODEL"])
    report = {"role": "target", "rank": 0, "model": "m", "key_id": made.key_id, "tensors": 2, "shared": made.nbytes,
              "how": "published", "error": ""}
    part = os.path.join(os.environ["IPC_CACHE_REPORT"], "part")
    with open(part, "w") as file:
        json.dump(report, file)
    os.rename(part, os.path.join(os.environ["IPC_CACHE_REPORT"], "target-0.json"))
    time.sleep(float(os.environ["LINGER"]))
"""


@pytest.fixture
def daemon(tmp_path, checkpoint):
    """daemon(directory, **variables): the running daemon; whatever it has started ends with the test."""
    (tmp_path / "publisher.py").write_text(textwrap.dedent(PUBLISHER))
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    common = {"MODEL": checkpoint, "PYTHONPATH": path, "STARTED": str(tmp_path / "started"), "LINGER": "600"}
    processes = []

    def start(directory, **variables):
        processes.append(start_python(DAEMON, directory, **{**common, **variables}))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        for pid in started(tmp_path):  # else they hold our pipes
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def started(folder):
    file = folder / "started"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def ends_alone(process, folder):
    """It ends well, and the one process that it had started is gone, and was waited for."""
    assert process.wait(PATIENCE) == 0
    (pid,) = started(folder)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_signal_as_the_broker_starts(daemon, tmp_path):
    from ipc_cache.loader import program

    directory = str(tmp_path / "own")
    ends_alone(daemon(directory, SIGNAL_AT=program("ipc-cached")), tmp_path)
    with pytest.raises(ipc_cache.NoBroker):
        ipc_cache.models(dir=directory)


def test_a_signal_as_the_publisher_starts(daemon, broker, tmp_path):
    ends_alone(daemon(broker.directory, SIGNAL_AT="publisher"), tmp_path)


def test_a_signal_when_a_rank_is_published_and_another_is_not(daemon, broker):
    """What is there already is freed."""
    process = daemon(broker.directory)
    assert process.stdout.readline().startswith("READY! target rank 0")
    assert len(ipc_cache.models()) == 1
    process.terminate()
    assert process.wait(PATIENCE) == 0
    wait_until(lambda: ipc_cache.models() == [], "the model to be freed")


def test_ranks_that_are_all_published(daemon, broker):
    process = daemon(broker.directory, LINGER="0")
    assert process.stdout.readline().startswith("READY! target rank 0")
    process.terminate()
    assert process.wait(PATIENCE) == 0
    wait_until(lambda: ipc_cache.models() == [], "the model to be freed")
