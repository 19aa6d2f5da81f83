"""Tensor objects and the memory behind them: exchanged, or shared by another object."""

from __future__ import annotations

from typing import Any

import torch

_swap: Any = torch._C._swap_tensor_impl


def another(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor over the same memory; no view in autograd's sense."""
    return torch.Tensor._make_subclass(torch.Tensor, tensor, False)


def copy_of(old: torch.Tensor) -> torch.Tensor:
    """Another object over the same memory, of the same class and with the same attributes."""
    made = torch.Tensor._make_subclass(type(old), old.detach(), False)
    made.__dict__.update(old.__dict__)
    return made


def exchange(old: torch.Tensor, new: torch.Tensor) -> None:
    """Gives `old` the memory, type and shape of `new`; its class and attributes stay. The shape may be another one: a
    skeleton is what the constructor made, and post-processing packs, transposes and pads. Where it has not, fit.py has
    compared them."""
    hand_over(old, another(new))


def hand_over(old: torch.Tensor, new: torch.Tensor) -> None:
    """exchange() with an object that nobody needs any more: it has afterwards what `old` had."""
    _swap(old, another(new) if new._is_view() else new)
