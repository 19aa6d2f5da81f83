"""Publishing what is in this process's memory, without any framework."""

import array
import os

import pytest

import ipc_cache
from ipc_cache import manifest

import dl


def read(weights, name):
    taken = dl.Taken(weights.dlpack(name).__dlpack__())
    content = taken.read(weights.entry(name).nbytes)
    taken.drop()
    return content


def test_buffers(broker):
    tensors = {
        "floats": array.array("f", [1, 2, 3]),
        "longs": array.array("q", [-1]),
        "unsigned": array.array("H", [1, 65535]),
        "bytes": b"abcdef",
        "square": memoryview(bytearray(range(12))).cast("B", (3, 4)),
        "nothing": b"",
        "größe": array.array("d", [0.5]),
    }
    made = ipc_cache.publish(tensors, {"model": "x"}, name="x")
    assert made.key == {"device": "host", "layout": "tensors", "model": "x"} and made.generation == 1
    with ipc_cache.attach("x", key=made.key, exact=True) as weights:
        assert list(weights) == list(tensors)
        for name, tensor in tensors.items():
            assert read(weights, name) == bytes(memoryview(tensor).tobytes()), name
        kinds = {name: weights.entry(name).dtype for name in weights}
        assert kinds["longs"] == "I64" and kinds["unsigned"] == "U16" and kinds["größe"] == "F64"
        assert weights.entry("square").shape == (3, 4)
        assert all(weights.entry(name).offset % 256 == 0 for name in weights)
        weights.verify()


def test_nothing_at_all(broker):
    ipc_cache.publish({}, {"model": "empty"}, name="empty")
    with ipc_cache.attach("empty") as weights:
        assert list(weights) == [] and weights.nbytes == 0


def test_attributes_sources_and_flags(broker, checkpoint):
    ipc_cache.publish(
        {"w": b"1", "b": b"2"},
        {"model": os.path.realpath(checkpoint)},
        name="x",
        attributes={"json": {"a": [1, None]}, "raw": b"\0\1"},
        sources=checkpoint,
        flags={"w": manifest.PARAMETER, "b": manifest.BUFFER},
    )
    with ipc_cache.attach(checkpoint) as weights:
        assert weights.manifest.source_state == "same"
        assert weights.attribute("json") == {"a": [1, None]} and weights.attribute("raw") == b"\0\1"
        assert weights.entry("w").is_parameter and weights.entry("b").is_buffer
        with pytest.raises(KeyError):
            weights.attribute("none")
    ipc_cache.publish({}, {"model": "y"}, name="y", sources=[os.path.join(checkpoint, "model.safetensors")])
    with ipc_cache.attach("y", sources=checkpoint, verify="hash") as weights:
        assert weights.manifest.sources[0].hash is not None


def test_exists_and_replace(broker):
    ipc_cache.publish({"w": b"old"}, {"model": "x"}, name="x")
    with pytest.raises(ipc_cache.Exists):
        ipc_cache.publish({"w": b"new"}, {"model": "x"}, name="x")
    with ipc_cache.attach("x") as old:
        ipc_cache.publish({"w": b"new"}, {"model": "x"}, name="x", replace=True)
        with ipc_cache.attach("x") as new:
            assert (read(old, "w"), read(new, "w")) == (b"old", b"new")


def test_a_failed_publication_leaves_nothing(broker):
    for tensors in ({"w": b"1", "bad": object()}, {"w": memoryview(bytearray(8))[::2]}):
        with pytest.raises(ipc_cache.Usage, match="bad|w"):
            ipc_cache.publish(tensors, {"model": "x"})
    with pytest.raises(ipc_cache.Usage, match="JSON"):
        ipc_cache.publish({"w": b"1"}, {"model": "x"}, attributes={"a": object()})
    with pytest.raises(ipc_cache.NotFound, match="no such file"):
        ipc_cache.publish({"w": b"1"}, {"model": "x"}, sources=["/nowhere/file"])
    with pytest.raises(ipc_cache.Usage):
        ipc_cache.publish({"w": b"1"}, {"model": "x"}, visibility="friends")
    with pytest.raises(ipc_cache.Invalid):
        ipc_cache.publish({"w": b"1"}, {"Model": "x"})
    assert ipc_cache.models() == []


def test_the_same_memory_is_published_once(broker):
    memory = bytearray(range(100))
    view = memoryview(memory)
    ipc_cache.publish(
        {"left": view[:60], "whole": view, "right": view[60:], "a": view[:10], "b": b"other"}, {"model": "x"}, name="x"
    )
    with ipc_cache.attach("x") as weights:
        assert weights.entry("whole").alias_of is None
        assert {weights.entry(n).alias_of for n in ("left", "right", "a")} == {"whole"}
        assert read(weights, "right") == bytes(range(60, 100)) and weights.nbytes < 600


def test_overlapping_without_an_owner(broker):
    view = memoryview(bytearray(range(100)))
    ipc_cache.publish({"left": view[:60], "right": view[40:]}, {"model": "x"}, name="x")
    with ipc_cache.attach("x") as weights:
        assert list(weights) == ["left", "right"] and len(weights.manifest) == 3
        assert read(weights, "right") == bytes(range(40, 100)) and weights.entry("left").alias_of is not None


def test_consuming(broker):
    tensors = {str(i): bytes([i]) * 10 for i in range(5)}
    ipc_cache.publish(tensors, {"model": "x"}, name="x", consume=True)
    assert tensors == {}
    with ipc_cache.attach("x") as weights:
        assert [read(weights, str(i)) for i in range(5)] == [bytes([i]) * 10 for i in range(5)]


def test_several_segments(broker, monkeypatch):
    from ipc_cache import publication

    monkeypatch.setattr(publication, "SEGMENT_BYTES", 1000)
    tensors = {str(i): bytes([i]) * (300 + i) for i in range(20)} | {"large": bytes(5000)}
    ipc_cache.publish(tensors, {"model": "x"}, name="x")
    with ipc_cache.attach("x") as weights:
        assert list(weights) == list(tensors) and len(weights.manifest.segments) > 5
        assert all(read(weights, name) == content for name, content in tensors.items())
    # Never more than a manifest may have, whatever the tensors' sizes.
    tensors = {str(i): bytes(1000) for i in range(1000)}
    ipc_cache.publish(tensors, {"model": "y"}, name="y")
    with ipc_cache.attach("y") as weights:
        assert len(weights.manifest.segments) <= 252
