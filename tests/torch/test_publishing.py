"""publish() of torch tensors and numpy arrays: strides, sharing and ties come back as they were."""

import ctypes

import numpy
import pytest
import torch
from torch import nn

import ipc_cache
from ipc_cache import content

from same import assert_same, bits
from test_checkpoints import every_type


def published(tensors, **options):
    ipc_cache.publish(tensors, {"model": "x"}, name="x", **options)
    return ipc_cache.attach("x")


def test_every_type(broker, views):
    tensors = every_type()
    with published(tensors) as weights:
        assert list(weights) == list(tensors)
        for name, tensor in tensors.items():
            assert_same(weights[name], tensor, name)


def test_strides(broker, views):
    base = torch.randn(6, 8)
    tensors = {
        "transposed": torch.randn(4, 6).t(),
        "permuted": torch.randn(2, 3, 4).permute(2, 0, 1),
        "expanded": torch.randn(3, 1).expand(3, 5),
        "columns": torch.randn(10, 100)[:, :3],
        "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
        "left": base[:, :4],
        "right": base[:, 4:],
        "whole": base,
    }
    with published(tensors) as weights:
        for name, tensor in tensors.items():
            assert torch.equal(weights[name], tensor), name
        for name in ("transposed", "permuted", "expanded", "left", "right"):
            assert weights[name].stride() == tensors[name].stride(), name
        # A view of a few columns does not bring all the others along.
        assert weights["columns"].is_contiguous() and weights.entry("columns").nbytes == 120
        assert {weights.entry(name).alias_of for name in ("left", "right")} == {"whole"}
        assert weights["left"].untyped_storage().data_ptr() == weights["whole"].untyped_storage().data_ptr()


def test_ties_and_overlaps(broker, views):
    base = torch.arange(100.0)
    a = torch.randn(3, 4)
    tensors = {"a": a, "tied": a, "detached": a.detach(), "front": base[:60], "back": base[40:], "turned": a.t()}
    with published(tensors) as weights:
        assert weights["tied"] is weights["a"] is weights["detached"]
        assert weights["turned"] is not weights["a"] and weights["turned"].data_ptr() == weights["a"].data_ptr()
        assert weights["back"].data_ptr() - weights["front"].data_ptr() == 40 * 4
        for name, tensor in tensors.items():
            assert torch.equal(weights[name], tensor), name
        assert list(weights) == ["a", "tied", "detached", "turned", "front", "back"]


def test_numpy(broker):
    arrays = {
        "f4": numpy.random.default_rng(0).normal(size=(3, 5)).astype("f4"),
        "f2": numpy.arange(6, dtype="f2"),
        "fortran": numpy.asfortranarray(numpy.arange(12, dtype="i8").reshape(3, 4)),
        "reversed": numpy.arange(5, dtype="u2")[::-1],
        "scalar": numpy.float64(2.5),
        "truth": numpy.array([True, False]),
        "complex": numpy.array([1 + 2j], dtype="c8"),
        "empty": numpy.zeros((0, 3), "i1"),
    }
    with published(arrays) as weights:
        for name, array in arrays.items():
            assert numpy.array_equal(weights[name].numpy(), array), name
            if array.size:
                shared = weights.numpy(name)
                assert numpy.array_equal(shared, array) and shared.dtype == array.dtype and not shared.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            weights.numpy("f4")[0] = 1
    for bad in (numpy.arange(3, dtype=">i4"), numpy.array(["text"]), numpy.array([1.0], dtype="longdouble")):
        with pytest.raises(ipc_cache.Usage, match="bad"):
            ipc_cache.publish({"bad": bad}, {"model": "y"})


def test_numpy_does_not_know_bfloat16(broker):
    with published({"w": torch.ones(3, dtype=torch.bfloat16)}) as weights:
        with pytest.raises(ipc_cache.Usage, match="BF16"):
            weights.numpy("w")
        assert bits(torch.from_dlpack(weights.dlpack("w"))) == bits(weights["w"])


def test_what_cannot_be_published(broker):
    for bad in (
        torch.empty(3, device="meta"),
        torch.ones(3).to_sparse(),
        torch.zeros(1, 1, 1, 1, 1, 1, 1, 1, 1),
        torch.ones(2, dtype=torch.complex128),
        [1, 2],
    ):
        with pytest.raises(ipc_cache.Usage, match="bad"):
            ipc_cache.publish({"bad": bad}, {"model": "y"})


def test_parameters_of_a_module(broker):
    module = nn.Linear(3, 4)
    with published(dict(module.named_parameters())) as weights:
        assert torch.equal(weights["weight"], module.weight) and not weights["weight"].requires_grad


def test_consuming_frees_as_it_goes(broker):
    import weakref

    tensors = {f"t{i}": torch.full((1000,), float(i)) for i in range(5)}
    gone = []
    for name, tensor in tensors.items():
        weakref.finalize(tensor, gone.append, name)
    del tensor
    with published(tensors, consume=True) as weights:
        assert tensors == {} and gone == [f"t{i}" for i in range(5)]
        assert all(weights[f"t{i}"][0] == i for i in range(5))


def test_bytes_for_another_gpu_go_through_the_host():
    """torch would fill a copy of that memory. Where the tensor is makes no difference to the way: here it is the host."""
    made, written = torch.arange(100, dtype=torch.uint8), {}

    class Sink:
        def write(self, segment, offset, address, nbytes):
            written[segment, offset] = ctypes.string_at(address, nbytes)

        def address(self, segment):
            raise AssertionError("the other GPU's memory was asked for")

    gpu = content._Gpu(0, (100,), (1,), "memory", 0, 100, made)
    gpu.copy_to(Sink(), 2, 512, 10, 90, "GPU-fa4e0c0d-0001-4000-8000-000000000002")
    assert written == {(2, 512): bytes(range(10, 90))}
