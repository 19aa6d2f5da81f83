"""Fixtures that the tests with and without torch share."""

import pytest

import harness


@pytest.fixture
def broker(tmp_path, monkeypatch):
    """Started for the test, which finds it by IPC_CACHE_DIR; checked for leftovers at the end."""
    started = harness.Broker(str(tmp_path))
    monkeypatch.setenv("IPC_CACHE_DIR", started.directory)
    try:
        yield started
        started.check_and_stop()
    finally:
        started.kill()
