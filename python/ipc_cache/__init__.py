"""ipc_cache: model weights that outlive the process which uses them.

    import ipc_cache
    with ipc_cache.attach("/models/minilm") as weights:      # the lease
        print(weights["embeddings.word_embeddings.weight"])  # a torch tensor over shared memory, not copied

Importing this package loads neither torch nor the C library: both are loaded when they are first needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

DISTRIBUTION = "ipc-cache"  # _guard.py: this package is ours
__version__ = "0.1.0"

from . import errors  # noqa: E402  (the guard looks at DISTRIBUTION)

if TYPE_CHECKING:
    from .client import Client as Client
    from .client import evict as evict
    from .client import models as models
    from .loader import load as load
    from .module import attach_module as attach_module
    from .publication import publish as publish
    from .weights import Weights as Weights
    from .weights import attach as attach

_LAZY = {
    "Client": "client",
    "evict": "client",
    "models": "client",
    "load": "loader",
    "attach_module": "module",
    "publish": "publication",
    "Weights": "weights",
    "attach": "weights",
}
_MODULES = ("client", "dlpack", "engine", "faults", "loader", "manifest", "module", "weights")
__all__ = sorted([*_LAZY, *(n for n in errors.__all__ if n != "make"), "errors"])

globals().update({name: getattr(errors, name) for name in errors.__all__ if name != "make"})


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_MODULES})
