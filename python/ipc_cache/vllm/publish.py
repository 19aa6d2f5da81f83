"""An ordinary load by vLLM's own loader, and its export into the broker.

The model is loaded and post-processed as always, its tensors are moved into segments one by one, each freed as it goes, and
the model itself is thrown away: the engine that published attaches like every later one. What is published was read from
files that did not change meanwhile; their content hashes go with it.
"""

import copy
import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from ipc_cache import engine
from ipc_cache.vllm import platform, rebuild, refuse, sources
from ipc_cache.vllm.options import Options
from ipc_cache.vllm.report import Report

# Scratch memory and locks that kernels write: made anew by post-processing, never shared.
_SCRATCH = frozenset({"workspace", "locks", "kv_cache"})
# So much is given back to the system at a time: freed blocks below malloc's threshold would else stay with the process.
_TRIM_BYTES = 128 << 20


class _Draining(dict):
    """Tensors that are taken out one by one; the memory of those that are gone is given back to the system."""

    def __init__(self, tensors) -> None:
        super().__init__(tensors)
        self.freed = 0
        try:
            self.trim = ctypes.CDLL(None).malloc_trim
        except AttributeError:  # not glibc
            self.trim = None

    def pop(self, name, *default):
        tensor = super().pop(name, *default)
        self.freed += tensor.nbytes if tensor is not None else 0
        del tensor
        if self.freed >= _TRIM_BYTES and self.trim is not None:
            self.trim(0)
            self.freed = 0


class FilesChanged(RuntimeError):
    """A file of the checkpoint changed while it was loaded."""


class OrdinaryLoader(DefaultModelLoader):
    """vLLM's default loader, which remembers what the model looked like before its weights were loaded."""

    def __init__(self, load_config) -> None:
        ordinary = copy.copy(load_config)
        ordinary.load_format = "auto"
        ordinary.model_loader_extra_config = {}
        super().__init__(ordinary)
        self.structure = None

    def load_weights(self, model: torch.nn.Module, model_config) -> None:
        self.structure = engine.snapshot(model)
        super().load_weights(model, model_config)


def load(load_config, vllm_config, model_config, prefix: str, report: Report) -> torch.nn.Module:
    """The model as vLLM would load it without us, with its usual kernels."""
    with report.phase("load"):
        return _load(OrdinaryLoader(load_config), vllm_config, model_config, prefix)


def _load(loader: OrdinaryLoader, vllm_config, model_config, prefix: str) -> torch.nn.Module:
    return loader.load_model(
        vllm_config=vllm_config, model_config=model_config, **({"prefix": prefix} if prefix else {})
    )


def publish(
    load_config, vllm_config, model_config, prefix: str, key, source: sources.Source, options: Options, report: Report
) -> None:
    """Loads, exports, and forgets the model. Raises Refused or FilesChanged before anything is published, Exists if
    somebody else was first."""
    files = sources.weight_files(source.folder)
    before = sources.stamp(files)
    with _registrations_undone(vllm_config):
        export = _exported(load_config, vllm_config, model_config, prefix, report)
    gc.collect()
    export.tensors = _Draining(export.tensors)

    def unchanged() -> None:
        if sources.stamp(sources.weight_files(source.folder)) != before:
            raise FilesChanged(
                f"ipc_cache: files in {source.folder} changed while they were loaded; nothing was published"
            )

    with report.phase("publish"):
        unchanged()
        # And once more when they have been hashed, which takes a while: what was loaded is what was hashed.
        published = engine.publish_export(
            export,
            key,
            name=options.name or source.identity,
            device=platform.device_name(platform.target_device(vllm_config)),
            sources=files,
            replace=options.replace,
            dir=options.dir,
            consume=True,
            before_commit=unchanged,
            timeout=600,
        )
    report.how = "published"
    report.shared = published.nbytes


def _exported(load_config, vllm_config, model_config, prefix: str, report: Report):
    """The tensors of a post-processed model; nothing else of it is left when this returns and garbage was collected."""
    loader = OrdinaryLoader(load_config)
    with report.phase("load"), platform.shareable_kernels():
        model = _load(loader, vllm_config, model_config, prefix)
    if getattr(model, "secondary_weights", ()):
        raise refuse.Refused(
            "ipc_cache: this model reads weights from further repositories, whose files cannot be compared "
            "later; use --load-format auto"
        )
    refuse.check_methods(model)
    rebuild.stamp(model)
    with report.phase("export"):
        export = engine.export(model, since=loader.structure, exclude=_is_scratch)
    _let_go(model)
    return export


def _let_go(model: torch.nn.Module) -> None:
    """The weights are the export's alone, whoever still refers to the model, its modules (vLLM's records for reloading do)
    or their parameters: each is freed as it is published. Buffers stay: vLLM shares rotary modules among models."""
    with torch._C.DisableTorchFunctionSubclass():
        for parameter in model.parameters():
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)


def _is_scratch(name: str, tensor: torch.Tensor, owner: torch.nn.Module) -> bool:
    return name.rpartition(".")[2].partition("[")[0] in _SCRATCH


@contextmanager
def _registrations_undone(vllm_config) -> Iterator[None]:
    """Attention and MoE layers enter themselves in the configuration when they are built, and refuse to do so twice."""
    config = vllm_config.compilation_config
    layers, experts = config.static_forward_context, getattr(config, "static_all_moe_layers", [])
    known, count = set(layers), len(experts)
    try:
        yield
    finally:
        for name in set(layers) - known:
            del layers[name]
        del experts[count:]
