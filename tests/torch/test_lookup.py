"""How the vLLM plugin looks for weights under another path: never wrong ones, and to the last candidate. Needs no vLLM."""

import logging
import shutil

import pytest
import torch

import ipc_cache
from ipc_cache.vllm import lookup
from ipc_cache.vllm.options import Options
from ipc_cache.vllm.sources import Source

from harness import age, small_checkpoint, wait_until

KEY = {"layout": "engine", "dtype": "bfloat16"}


@pytest.fixture
def copies(broker, tmp_path, caplog):
    """Four folders with the same checkpoint: "mine", which is what is looked for, and three others."""
    caplog.set_level(logging.INFO, "vllm.ipc_cache")
    mine, _ = small_checkpoint(str(tmp_path), "mine")
    for name in ("one", "two", "three"):
        shutil.copytree(mine, tmp_path / name)
    for file in tmp_path.glob("*/*"):
        age(file)
    return tmp_path


def publish(folder, value, name=None, files=None, **fields):
    key = {**KEY, "model": str(folder), **fields}
    tensors = {"w": torch.full((4,), float(value))}
    return ipc_cache.publish(tensors, key, name=name or folder.name, sources=files or folder)


def find(copies, **options):
    """The value in the weights that are found for "mine", and the key that they have; or the miss."""
    fields = {**KEY, "model": str(copies / "mine")}
    source = Source(fields["model"], copies / "mine")
    decision = lookup.find(fields, source, "host", Options(verify="hash", on_miss="load", **options))
    if decision.weights is None:
        return decision.miss
    with decision.weights as weights:
        return weights["w"][0].item(), weights.manifest.key["model"], weights.manifest.key["dtype"]


def failing(monkeypatch, errors):
    """Attaching to the models of these folders raises, if they are there."""
    real = ipc_cache.attach

    def attach(*arguments, **options):
        weights = real(*arguments, **options)
        error = errors.get(weights.manifest.name)
        if error is None:
            return weights
        weights.close()
        raise error

    monkeypatch.setattr(ipc_cache, "attach", attach)


def test_a_model_that_is_named_as_anothers_number_is_not_taken(copies):
    """Whoever may publish may also choose a name: here a model of another dtype calls itself by the right one's number."""
    publish(copies / "one", 1)
    (right,) = ipc_cache.models()
    publish(copies / "one", 2, name=right.key_id, dtype="float32")
    assert find(copies) == (1, str(copies / "one"), "bfloat16")


@pytest.mark.parametrize("error", [ipc_cache.Busy, ipc_cache.Timeout, ipc_cache.Refused, ipc_cache.Unknown])
def test_a_copy_that_is_not_to_be_had_does_not_end_the_search(copies, monkeypatch, caplog, error):
    for i, name in enumerate(("one", "two", "three")):
        publish(copies / name, i)
    failing(monkeypatch, {"one": error("not now"), "three": error("nor this one")})
    assert find(copies) == (1, str(copies / "two"), "bfloat16")
    said = [record.getMessage() for record in caplog.records]
    assert all(str(copies / "two") not in line for line in said)
    failing(monkeypatch, {"two": error("nor that one")})
    miss = find(copies)
    assert isinstance(miss, error if error is ipc_cache.Unknown else ipc_cache.NotFound)
    assert f"ipc_cache: the copy from {copies / 'two'} is passed over: nor that one" in caplog.text


@pytest.mark.parametrize("error", [ipc_cache.Busy, ipc_cache.Unknown])
def test_ones_own_path_that_is_not_to_be_had(copies, monkeypatch, error):
    publish(copies / "mine", 0)
    publish(copies / "one", 1)
    failing(monkeypatch, {"mine": error("not now")})
    assert find(copies) == (1, str(copies / "one"), "bfloat16")


def test_a_copy_of_fewer_files_does_not_end_the_search(copies):
    """It was made without a file that this folder has; another one was made with it."""
    for name in ("mine", "one", "two", "three"):
        shutil.copy(copies / name / "model.safetensors", copies / name / "more.safetensors")
        age(copies / name / "more.safetensors")
    publish(copies / "one", 1, files=[copies / "one" / "model.safetensors"])
    publish(copies / "two", 2)
    publish(copies / "three", 3, files=[copies / "three" / "model.safetensors"])
    assert find(copies) == (2, str(copies / "two"), "bfloat16")


def test_other_content_is_the_miss(copies):
    file = copies / "mine" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    age(file)
    publish(copies / "one", 1)
    miss = find(copies)
    assert isinstance(miss, ipc_cache.Mismatch) and miss.field == "model.safetensors"


def test_the_nearest_copy_is_the_miss(copies):
    """One copy has other content, whichever comes first; what the other lacks says more."""
    for name in ("one", "three"):
        file = copies / name / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"\x01")
        age(file)
    for value, name in enumerate(("one", "two", "three")):
        publish(copies / name, value)
    shutil.copy(copies / "mine" / "model.safetensors", copies / "mine" / "more.safetensors")
    age(copies / "mine" / "more.safetensors")
    assert find(copies).field == "more.safetensors"


def test_who_replaces_does_not_attach_to_what_is_there(copies):
    publish(copies / "mine", 1)
    fields = {**KEY, "model": str(copies / "mine")}
    for replaces in (True, False):
        options = Options(verify="hash", on_miss="publish", replace=replaces)
        decision = lookup.find(fields, Source(fields["model"], copies / "mine"), "host", options)
        assert (decision.weights is None, decision.stale) == (replaces, replaces)
        if replaces:
            assert "is resident, and is replaced" in str(decision.miss)
            wait_until(lambda: ipc_cache.models()[0].leases == 0, "the lease to end")
        else:
            decision.weights.close()
