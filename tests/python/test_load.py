"""load(): the command's verdicts as exceptions."""

import os

import pytest

import ipc_cache

from harness import age, write_safetensors


def test_loading_twice_is_loading_once(broker, checkpoint):
    first = ipc_cache.load(checkpoint, name="mine")
    again = ipc_cache.load(checkpoint)
    assert (first.name, first.tensors, first.already_resident, first.nbytes) == ("mine", 2, False, 56)
    assert (again.generation, again.already_resident, again.key_id) == (first.generation, True, first.key_id)
    assert ipc_cache.load(checkpoint, replace=True).generation == first.generation + 1


def test_a_part(broker, checkpoint):
    assert ipc_cache.load(checkpoint, include=["head.*"], threads=1).tensors == 1
    assert ipc_cache.load(checkpoint, exclude=["head.*"]).tensors == 1


def test_errors(broker, checkpoint, tmp_path):
    with pytest.raises(ipc_cache.NotFound, match="nowhere"):
        ipc_cache.load(tmp_path / "nowhere")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\xff" * 100)
    with pytest.raises(ipc_cache.Invalid, match="broken"):
        ipc_cache.load(broken)
    with pytest.raises(ipc_cache.NotFound, match="cuda:9"):
        ipc_cache.load(checkpoint, device="cuda:9")
    with pytest.raises(ipc_cache.Usage):
        ipc_cache.load(checkpoint, visibility="friends")
    with pytest.raises(ipc_cache.NoBroker):
        ipc_cache.load(checkpoint, dir=tmp_path / "nobody")


def test_another_content_is_a_mismatch(resident):
    write_safetensors(os.path.join(resident, "model.safetensors"), {"x": ("U8", (3,), b"abc")})
    with pytest.raises(ipc_cache.Mismatch) as caught:
        ipc_cache.load(resident)
    assert caught.value.field == "model.safetensors" and caught.value.got and "--replace" in str(caught.value)


def test_a_path_that_looks_like_an_option(broker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    age(write_safetensors("--replace", {"x": ("U8", (3,), b"abc")}))
    assert ipc_cache.load("--replace").tensors == 1
