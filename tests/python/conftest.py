"""Fixtures of the light tests: the package as it is installed, without torch and numpy."""

import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))

import ipc_cache

import harness
from fixtures import broker as broker


def pytest_report_header(config):
    from ipc_cache import _library

    version = sys.version.split()[0]
    return f"ipc_cache {ipc_cache.__version__} from {os.path.dirname(ipc_cache.__file__)}, {_library.path()}, {version}"


@pytest.fixture
def checkpoint(tmp_path):
    """The path of a small checkpoint."""
    return harness.small_checkpoint(str(tmp_path))[0]


@pytest.fixture
def resident(broker, checkpoint):
    """The same, loaded under the name `model`."""
    ipc_cache.load(checkpoint)
    return checkpoint
