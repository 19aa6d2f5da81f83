"""Comparing tensors bit by bit, whatever their type."""

import torch


def bits(tensor):
    """A tensor's elements as bytes, in row-major order."""
    if tensor.numel() == 0:
        return b""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def assert_same(have, want, name=""):
    assert have.dtype == want.dtype, (name, have.dtype, want.dtype)
    assert have.shape == want.shape, (name, have.shape, want.shape)
    assert bits(have) == bits(want), name


def assert_same_all(have, want):
    """Names, their order, and every bit."""
    assert list(have) == list(want)
    for name, tensor in want.items():
        assert_same(have[name], tensor, name)
        assert have[name].stride() == tensor.stride(), name
