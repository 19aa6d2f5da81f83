"""Fixtures of the system tests: see harness.py for what they give."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))

import harness  # noqa: E402
import models  # noqa: E402

TREE = Path(__file__).resolve().parents[2]


def pytest_configure(config):
    # In a background job it is ignored, and so it would be in every process that we start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def place():
    """A folder that every user can enter; pytest's own are closed to others."""
    folder = tempfile.mkdtemp(prefix="ipc-cache-test-")
    os.chmod(folder, 0o755)
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def binaries(place):
    """The programs, where every user can run them."""
    harness.raise_fd_limit()
    build = Path(os.environ.get("IPC_CACHE_BUILD", TREE / "build"))
    folder = place / "bin"
    folder.mkdir()
    for name in ("ipc-cached", "ipc-cache"):
        assert (build / name).exists(), f"{build / name} is missing: run make first, or set IPC_CACHE_BUILD"
        shutil.copy(build / name, folder / name)
        os.chmod(folder / name, 0o755)
    os.chmod(folder, 0o755)
    return harness.Binaries(folder / "ipc-cached", folder / "ipc-cache")


@pytest.fixture
def folder(place):
    """One test's own folder, open to every user."""
    made = Path(tempfile.mkdtemp(prefix="t-", dir=place))
    os.chmod(made, 0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def start_broker(binaries, folder):
    """start_broker(config=..., prefix=..., name=...): started, and checked and stopped at the end of the test."""
    started = []

    def start(config="", prefix=(), name="broker", **options):
        broker = harness.Broker(binaries, str(folder / name), config=config, prefix=tuple(prefix), **options)
        started.append(broker)
        return broker.start()

    yield start
    try:
        for broker in started:
            if broker.process is not None:
                broker.check_and_stop()
    finally:
        for broker in started:
            broker.kill()


@pytest.fixture
def broker(start_broker):
    return start_broker()


@pytest.fixture
def cli(broker):
    return broker.cli


@pytest.fixture
def client(broker):
    with broker.connect() as connected:
        yield connected


@pytest.fixture
def small(folder):
    """A folder with a small checkpoint."""
    return models.write_small(folder / "small")


@pytest.fixture
def resident(broker, small):
    """The small checkpoint, loaded under the name `small`; its path."""
    broker.leaves_models = True
    broker.cli("load", small, "--name", "small", expect=0)
    return small


@pytest.fixture
def keeper(broker):
    """A connection that keeps the model `kept`."""
    with broker.connect() as client:
        client.made = models.Kept()
        client.id, client.generation = client.made.publish(client)
        yield client


@pytest.fixture
def root():
    if os.geteuid() != 0:
        pytest.skip("needs root, to become other users and to make cgroups")


@pytest.fixture
def other_users(root):
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv (util-linux), to become another user")


@pytest.fixture
def not_sanitized(binaries):
    if binaries.sanitized:
        pytest.skip("a sanitizer build: its memory, fds and speed are not those of the program")


@pytest.fixture(scope="session")
def minilm():
    found = models.minilm()
    if found is None:
        pytest.skip("the real model could not be fetched (no network?)")
    return found


@pytest.fixture
def user_namespaces():
    tried = subprocess.run(["unshare", "--user", "--map-root-user", "true"], check=False, capture_output=True)
    if tried.returncode != 0:
        pytest.skip(f"needs user namespaces: {tried.stderr.decode().strip()}")
