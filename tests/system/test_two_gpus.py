"""Two GPUs, on the fake driver: what tests/gpu/two does on real cards, and copies from one to the other."""
import os
import pathlib
import subprocess

import pytest
from gpu import BUILD, FakeDriver, uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIB = 1 << 20


@pytest.fixture
def fake(folder, binaries):
    driver = FakeDriver(folder)
    yield driver
    assert driver.take("leaks") == ""


def test_the_run_for_two_real_cards_passes_on_the_fake(folder, not_sanitized):
    done = subprocess.run([ROOT / "tests" / "gpu" / "two", folder / "report", "--fake", "--build", BUILD, "--rounds", "20"],
                          stdout=subprocess.PIPE, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout
    report = (folder / "report" / "report.md").read_text()
    assert "| NO |" not in report and "not run" not in report and report.count("| yes |") == 13


def test_one_card_is_too_few_for_it(folder, not_sanitized):
    done = subprocess.run([ROOT / "tests" / "gpu" / "two", folder / "report", "--fake", "--build", BUILD],
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": "1"}, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 1 and "two GPUs are needed" in done.stderr and uuid(1) in done.stderr


def test_a_copys_time_is_told_by_phase(broker, small, fake):
    broker.leaves_models = True
    broker.cli("load", small, "--name", "small", "--device", "cuda:1", prefix=fake.prefix(), expect=0)
    said = broker.cli("copy", "small", "--device", "cuda:0", "--json", prefix=fake.prefix(), expect=0).json
    phases = said["phases_ms"]
    assert set(phases) == {"driver", "claim", "context", "create", "map", "bytes", "seal", "commit"}
    assert phases["bytes"] > 0 and phases["map"] > 0 and sum(phases.values()) <= said["seconds"] * 1e3
    text = broker.cli("copy", "small", "--from", "cuda:1", "--device", "cuda:0", "--replace", prefix=fake.prefix(), expect=0).text
    assert "the bytes in" in text and all(phase in text for phase in phases)


def segments(broker, fake):
    """The bytes of every GPU segment that the broker holds."""
    found = []
    for fd in pathlib.Path(f"/proc/{broker.pid}/fd").iterdir():
        if os.readlink(fd).startswith(f"/memfd:fake-cuda.{fake.scope}."):
            found.append(fd.read_bytes())
    return found


def test_nothing_of_what_a_gpus_memory_held_before_is_published(broker, small, fake):
    """The fake's memory is not zero when it is new; a copy is not cleared before it is written to."""
    broker.leaves_models = True
    broker.cli("load", small, "--name", "small", expect=0)
    broker.cli("copy", "small", "--device", "cuda:0", prefix=fake.prefix(), expect=0)
    host = next(m for m in broker.models() if m["key"]["device"] == "host")
    assert host["segments"] == 1 and host["bytes"] % (2 * MIB) != 0, "so that something is left over"
    broker.cli("load", small, "--name", "small", "--device", "cuda:1", prefix=fake.prefix(), expect=0)
    assert len(segments(broker, fake)) == 2
    for segment in segments(broker, fake):
        assert not any(segment[host["bytes"]:]) and any(segment[:host["bytes"]])
