"""The examples run as they are, and say what they promise."""

import os
import re
import subprocess
import sys

from conftest import TREE


def run(name, *arguments):
    done = subprocess.run(
        [sys.executable, os.path.join(TREE, "examples", name), *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pytorch(broker, tmp_path):
    first, again = (run("pytorch.py", "--checkpoint", tmp_path / "net.safetensors") for _ in range(2))
    assert "64 tensors" in first and "lease held" in first
    assert first.splitlines()[-1] == again.splitlines()[-1] and "output: " in again


def test_minilm(broker, minilm):
    said = run("transformers_minilm.py", minilm)
    assert "the same as from_pretrained(): True" in said
    close, far = (float(line.split()[0]) for line in said.splitlines()[2:4])
    assert close > far


def test_prefork(broker, minilm):
    said = run("prefork.py", minilm, "--workers", 3, "--requests", 12)
    print(said)
    assert "12 answers by" in said and "from one copy of" in said
    shares = [float(share) for share in re.findall(r"its share ([\d.]+) MiB", said)]
    resident = [float(size) for size in re.findall(r"resident ([\d.]+) MiB", said)]
    assert len(shares) >= 2 and all(share < size for share, size in zip(shares, resident))


def test_without_a_broker(tmp_path, monkeypatch):
    monkeypatch.setenv("IPC_CACHE_DIR", str(tmp_path / "nobody"))
    done = subprocess.run(
        [sys.executable, os.path.join(TREE, "examples", "pytorch.py"), "--checkpoint", str(tmp_path / "x.safetensors")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "start ipc-cached" in done.stderr
