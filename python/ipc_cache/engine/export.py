"""export(): everything of a loaded and post-processed module that another process needs to be the same model.

Tensors travel as tensors, each once; what they cannot say goes with them as the state that state.py describes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .. import errors, manifest
from ..publication import Published, publish
from .state import STATE, VERSION
from .structure import Structure, Tree, join, modules, plain_trees, registered, scalars
from .values import NotPlain, encode

Exclude = Callable[[str, torch.Tensor, nn.Module], bool]
Scalars = Callable[[str, str, Any], bool]


@dataclass
class Export:
    """tensors by name, kinds ("parameter", "buffer", "plain") by name, and the state that goes with them; excluded: names
    that the caller's predicate left out. The tensors are bare ones over the module's memory: they do not keep the module
    alive (a parameter's loader does), so that each can be freed once it is published."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    excluded: list[str] = field(default_factory=list)

    @property
    def flags(self) -> dict[str, int]:
        """As the manifest has them."""
        numbers = {"parameter": manifest.PARAMETER, "buffer": manifest.BUFFER, "plain": 0}
        return {name: numbers[kind] for name, kind in self.kinds.items()}


class _Exporter:
    def __init__(self, since: Structure | None, exclude: Exclude | None, wanted: Scalars | None) -> None:
        self.since, self.exclude, self.wanted = since, exclude, wanted
        self.out = Export()
        self.none: list[str] = []
        self.seen: set[str] = set()
        self.same: dict[str, str] = {}
        self.plain: dict[str, dict[str, Tree]] = {}
        self.scalars: dict[str, dict[str, Any]] = {}
        self._first: dict[int, str] = {}  # by object

    def add(self, name: str, tensor: torch.Tensor, kind: str, owner: nn.Module) -> bool:
        """Is it part of the export?"""
        self.seen.add(name)
        if self.exclude is not None and self.exclude(name, tensor, owner):
            self.out.excluded.append(name)
            return False
        self.out.kinds[name] = kind
        self.out.tensors[name] = tensor
        first = self._first.setdefault(id(tensor), name)
        if first != name:
            self.same[name] = first
        return True

    def registered(self, path: str, module: nn.Module) -> None:
        for name, _, tensor, kind in registered(path, module):
            if tensor is not None:
                self.add(name, tensor, kind, module)
            elif self.since is None or name in self.since.tensors:
                self.seen.add(name)
                self.none.append(name)

    def attributes(self, path: str, module: nn.Module) -> None:
        for attribute, tree, found in plain_trees(path, module):
            kept = [self.add(name, tensor, "plain", module) for name, tensor in found.items()]
            if all(kept):
                self.plain.setdefault(path, {})[attribute] = tree
            elif any(kept):
                raise errors.Usage(
                    f"{join(path, attribute)} holds tensors of which some are excluded; exclude all or none of "
                    f"{', '.join(found)}"
                )
        self.changed_scalars(path, module)

    def reshaped(self) -> list[str] | None:
        """Parameters that the skeleton does not have in the shape that they have here."""
        if self.since is None:
            return None
        parameters = [name for name, kind in self.out.kinds.items() if kind == "parameter"]
        return [n for n in parameters if self.since.tensors.get(n) != self.out.tensors[n].shape]

    def changed_scalars(self, path: str, module: nn.Module) -> None:
        if self.since is None:
            return
        before = self.since.state.get(path, {})
        for attribute, value in scalars(module).items():
            if attribute in before and before[attribute] == value:
                continue
            if join(path, attribute) in self.since.tensors and value is None:
                self.seen.add(join(path, attribute))
                self.none.append(join(path, attribute))
            elif self.wanted is None or self.wanted(path, attribute, module.__dict__[attribute]):
                self.scalars.setdefault(path, {})[attribute] = value


def _tensor_flags(tensor: torch.Tensor) -> dict[str, Any]:
    """What was set on the tensor object, as far as it can travel."""
    found = {}
    for name, value in tensor.__dict__.items():
        try:
            found[name] = encode(value)
        except NotPlain:
            continue
    return found


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, without class and attributes."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach()


def _main_device(tensors: dict[str, torch.Tensor]) -> torch.device:
    """Where most bytes are."""
    sizes: dict[torch.device, int] = {}
    for tensor in tensors.values():
        sizes[tensor.device] = sizes.get(tensor.device, 0) + tensor.nbytes
    return max(sizes, key=lambda device: sizes[device], default=torch.device("cpu"))


def export(
    module: nn.Module,
    *,
    since: Structure | None = None,
    exclude: Exclude | None = None,
    scalars: Scalars | None = None,
) -> Export:
    """Exports a loaded, post-processed module.

    since: its snapshot() from before the weights were loaded; without it neither deleted names nor host state travel.
    exclude(name, tensor, owner): leave this tensor out (workspaces, locks); the skeleton's own stays.
    scalars(module path, attribute, value): which of the changed plain attributes travel; default: all that JSON can say.
    """
    exporter = _Exporter(since, exclude, scalars)
    # Registered names first: where an object stands under several names, the first one is the one that owns it.
    for path, part in modules(module):
        exporter.registered(path, part)
    for path, part in modules(module):
        exporter.attributes(path, part)
    out = exporter.out
    meta = [name for name, tensor in out.tensors.items() if tensor.is_meta]
    if meta:
        raise errors.MetaLeft(f"on meta, without memory to publish: {', '.join(meta[:20])}", meta)
    flags = {name: _tensor_flags(tensor) for name, tensor in out.tensors.items() if name not in exporter.same}
    main = _main_device(out.tensors)
    out.state = {
        "version": VERSION,
        "same": exporter.same,
        "deleted": sorted(since.tensors.keys() - exporter.seen) if since is not None else [],
        "none": exporter.none,
        "flags": {name: found for name, found in flags.items() if found},
        "host": [n for n, t in out.tensors.items() if t.device.type == "cpu" and main.type != "cpu"],
        "reshaped": exporter.reshaped(),
        "plain": exporter.plain,
        "scalars": exporter.scalars,
    }
    out.tensors = {name: _bare(tensor) for name, tensor in out.tensors.items()}
    return out


def publish_export(exported: Export, key: dict[str, str], **options: Any) -> Published:
    """publish() of an export; `attributes` go beside its own."""
    attributes = {**options.pop("attributes", {}), STATE: exported.state}
    return publish(exported.tensors, key, attributes=attributes, flags=exported.flags, **options)
