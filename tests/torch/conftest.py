"""Fixtures of the tests with torch, transformers, safetensors and numpy."""

import os
import subprocess
import sys

import pytest

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TREE, "tests", "python"))

import torch  # noqa: E402

import ipc_cache  # noqa: E402

from fixtures import broker as broker  # noqa: E402

os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_report_header(config):
    import numpy
    import safetensors
    import transformers

    return (
        f"ipc_cache {ipc_cache.__version__}, torch {torch.__version__}, safetensors {safetensors.__version__}, "
        f"transformers {transformers.__version__}, numpy {numpy.__version__}, Python {sys.version.split()[0]}"
    )


@pytest.fixture(scope="session")
def minilm():
    """The folder of the real model."""
    done = subprocess.run([os.path.join(TREE, "tools", "fetch-model")], capture_output=True, text=True, check=False)
    folder = done.stdout.strip()
    if not folder.endswith("all-minilm-l6-v2"):
        pytest.skip(f"the real model could not be fetched (no network?): {done.stderr}")
    return folder


@pytest.fixture(params=["fast", "plain"])
def views(request, monkeypatch):
    """Both ways of making views."""
    from ipc_cache import tensors

    if request.param == "plain":
        monkeypatch.setattr(tensors, "_fast", lambda: None)
    else:
        assert tensors._fast() is not None, "this torch has no fast way"
    return request.param
