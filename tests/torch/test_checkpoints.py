"""Loaded checkpoints, bit by bit against the safetensors package: names, order, shapes, types, bytes."""

import json
import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import ipc_cache
from ipc_cache import dtypes

from harness import age
from same import assert_same, assert_same_all, bits


def noise(kind, *shape):
    """Random bits; of a boolean, random truth."""
    if kind is torch.bool:
        return torch.rand(shape) > 0.5
    count = torch.Size(shape).numel()
    return torch.randint(0, 256, (count * kind.itemsize,), dtype=torch.uint8).view(kind).view(shape)


def every_type():
    """Each type that torch and safetensors know, in odd shapes."""
    tensors = {}
    for number, kind in dtypes.torch_types().items():
        name = dtypes.NAMES[number].lower()
        tensors[f"{name}.matrix"] = noise(kind, 3, 5)
        tensors[f"{name}.vector"] = noise(kind, 7)
        tensors[f"{name}.empty"] = noise(kind, 0, 4)
        if kind is not getattr(torch, "float4_e2m1fn_x2", None):
            tensors[f"{name}.scalar"] = noise(kind, 1)[0].clone()
            tensors[f"{name}.deep"] = noise(kind, 1, 2, 1, 3, 1)
    return tensors


def test_every_type_that_torch_knows(broker, tmp_path, views):
    tensors = every_type()
    assert len({tensor.dtype for tensor in tensors.values()}) >= 19
    path = tmp_path / "every.safetensors"
    save_file(tensors, path)
    age(path)
    ipc_cache.load(path)
    with ipc_cache.attach(path) as weights:
        assert_same_all(weights, load_file(path))


def test_types_that_torch_does_not_know(broker, tmp_path, views):
    from harness import write_safetensors

    content = bytes(range(12))
    path = write_safetensors(
        tmp_path / "six.safetensors", {"a": ("F6_E2M3", (4, 4), content), "b": ("U8", (12,), content)}
    )
    ipc_cache.load(path)
    with ipc_cache.attach(path) as weights:
        with pytest.raises(ipc_cache.Usage, match="no type for F6_E2M3.*raw"):
            weights["a"]
        assert bits(weights.raw("a")) == content and bits(weights["b"]) == content
        assert list(weights) == ["a", "b"]


def sharded(folder):
    """Two shards of several types, with names that are not in the order of the alphabet."""
    os.makedirs(folder)
    shards = [
        {
            "z.weight": noise(torch.bfloat16, 33, 17),
            "a.weight": noise(torch.float32, 5),
            "m.none": noise(torch.int8, 0),
        },
        {"b.weight": noise(torch.float8_e4m3fn, 9, 3), "a.scale": noise(torch.float64, 1)[0].clone()},
    ]
    places = {}
    for i, tensors in enumerate(shards):
        name = f"model-{i + 1:05}-of-00002.safetensors"
        save_file(tensors, os.path.join(folder, name), {"format": "pt"})
        age(os.path.join(folder, name))
        places.update(dict.fromkeys(tensors, name))
    index = os.path.join(folder, "model.safetensors.index.json")
    with open(index, "w") as file:
        json.dump({"metadata": {}, "weight_map": places}, file)
    age(index)
    return [os.path.join(folder, name) for name in sorted(set(places.values()))]


def test_a_sharded_checkpoint(broker, tmp_path, views):
    files = sharded(tmp_path / "model")
    ipc_cache.load(tmp_path / "model")
    want = {}
    for file in files:
        want.update(load_file(file))
    with ipc_cache.attach(tmp_path / "model") as weights:
        # Shard after shard, and in each as safetensors gives them: by their place in the file.
        assert list(weights) == [name for file in files for name in safe_open(file, "pt").offset_keys()]
        for name, tensor in want.items():
            assert_same(weights[name], tensor, name)
        metadata = weights.attribute("safetensors.metadata")
        assert set(metadata) == {os.path.basename(file) for file in files}


def test_twenty_thousand_tensors(broker, tmp_path, views):
    values = torch.randint(0, 2**31, (20000, 6), dtype=torch.int32)
    tensors = {f"model.layers.{i // 7}.part{i % 7}.weight": values[i].view(2, 3).clone() for i in range(20000)}
    path = tmp_path / "many.safetensors"
    save_file(tensors, path)
    age(path)
    ipc_cache.load(path)
    with ipc_cache.attach(path) as weights:
        want = load_file(path)
        assert list(weights) == list(want)
        assert torch.equal(torch.stack([weights[n] for n in tensors]), torch.stack(list(tensors.values())))


def test_minilm(broker, minilm, views):
    file = os.path.join(minilm, "model.safetensors")
    ipc_cache.load(minilm)
    with ipc_cache.attach(minilm) as weights:
        assert len(weights) > 100
        assert_same_all(weights, load_file(file))
        assert weights.manifest.source_state == "same"
        with safe_open(file, "pt") as opened:
            assert weights.attribute("safetensors.metadata") == {"model.safetensors": opened.metadata()}
