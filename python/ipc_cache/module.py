"""attach_module(): a checkpoint's shared weights become the parameters of a plain PyTorch module.

The module is built without memory, on `meta` or by engine.skeleton(); a parameter keeps its class, its attributes and its
identity, so tied parameters stay tied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from . import errors
from .client import StrPath
from .engine.check import check_no_meta
from .engine.memory import exchange
from .engine.structure import join, modules
from .weights import Weights, attach


@dataclass
class _Targets:
    """A module's tensors by all their names."""

    objects: dict[str, torch.Tensor]  # parameters and persistent buffers
    computed: dict[str, torch.Tensor]  # buffers that are not part of a checkpoint; older ones have some all the same
    buffers: set[int]  # ids

    @classmethod
    def of(cls, module: nn.Module) -> _Targets:
        out = cls({}, {}, set())
        for path, part in modules(module):
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    out.objects[join(path, name)] = parameter
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    to = out.computed if name in part._non_persistent_buffers_set else out.objects
                    to[join(path, name)] = buffer
                    out.buffers.add(id(buffer))
        return out


def _match(
    kind: str, targets: _Targets, names: dict[str, str], weights: Weights, strict: bool
) -> dict[str, torch.Tensor]:
    """The module's tensors to bind, by the names of the weights. names: of the module by those of the weights."""
    computed = targets.computed
    own_names = set(names.values())
    late = {name: buffer for name, buffer in computed.items() if buffer.is_meta and name in own_names}
    objects = {**targets.objects, **late}
    unexpected = sorted(name for name, own in names.items() if own not in objects and own not in computed)
    bound = {id(objects[own]) for own in names.values() if own in objects}
    missing = sorted(name for name, tensor in objects.items() if id(tensor) not in bound and tensor.is_meta)
    if strict and (unexpected or missing):
        parts = [f"the module needs {errors.listed(missing)}"] if missing else []
        parts += [f"it has no {errors.listed(unexpected)}"] if unexpected else []
        raise errors.Mismatch(
            f"{weights.manifest.name} is not the model of this {kind}: {'; '.join(parts)}", 0, "names",
            errors.listed(missing), errors.listed(unexpected),
        )  # fmt: skip
    found = {name: objects[own] for name, own in names.items() if own in objects}
    for name, tensor in found.items():
        shape = weights[name].shape
        if shape != tensor.shape:
            raise errors.Mismatch(
                f"{name} of {weights.manifest.name} has shape {tuple(shape)}, the module needs {tuple(tensor.shape)}: "
                f"another model, or another configuration", 0, name, str(tuple(tensor.shape)), str(tuple(shape)),
            )  # fmt: skip
    return found


def _check_tie(weights: Weights, first: str, name: str) -> None:
    """The module has one parameter where the checkpoint has two tensors: they must be the same, bit by bit."""
    if weights[first] is not weights[name] and not torch.equal(weights.raw(first), weights.raw(name)):
        raise errors.Mismatch(
            f"the module ties {first} and {name}, which differ in {weights.manifest.name}; untie them in the module's "
            f"configuration", 0, name, f"the same as {first}", "other bytes",
        )  # fmt: skip


def bind_module(
    module: nn.Module,
    weights: Weights,
    *,
    prefix: str = "",
    rename: Callable[[str], str | None] | None = None,
    strict: bool = True,
) -> None:
    """attach_module() for weights that are attached already."""

    def own_name(name: str) -> str | None:
        if not name.startswith(prefix):
            return None
        return name[len(prefix) :] if rename is None else rename(name[len(prefix) :])

    names = {name: own for name in weights if (own := own_name(name)) is not None}
    done: dict[int, str] = {}  # the object's first name
    targets = _Targets.of(module)
    for name, tensor in _match(type(module).__name__, targets, names, weights, strict).items():
        first = done.setdefault(id(tensor), name)
        if first != name:
            _check_tie(weights, first, name)
            continue
        view = weights[name]
        exchange(tensor, view.clone() if id(tensor) in targets.buffers and not weights.private else view)
        if isinstance(tensor, nn.Parameter):
            tensor.requires_grad_(False)
    if strict:
        check_no_meta(module)


def attach_module(
    module: nn.Module,
    model: StrPath | None = None,
    *,
    prefix: str = "",
    rename: Callable[[str], str | None] | None = None,
    strict: bool = True,
    **options: Any,
) -> Weights:
    """Attaches to a checkpoint and makes a module's parameters views of it; returns the Weights, which hold the lease.

    module: built on `meta`, or within ipc_cache.engine.skeleton() so that buffers which its constructor computes are
    real. Parameters become read-only views (options: private=True for writable ones) and need no gradient; persistent
    buffers become private copies; ties are kept.
    prefix: what the checkpoint's names begin with and the module's do not; others are left out. rename: further changes
    of a name; None leaves it out. strict: Mismatch with the names when the checkpoint lacks something or has more, and
    MetaLeft when anything is left on meta. options: as of attach(). On failure the module is unusable.
    """
    weights = attach(model, **options)
    try:
        bind_module(module, weights, prefix=prefix, rename=rename, strict=strict)
    except BaseException:
        weights.close()
        raise
    return weights
