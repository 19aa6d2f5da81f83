"""Is this package whole? Another distribution, vllm-ipc-cache, ships a package of the same name.

Installed into the same folder, files of one overwrite those of the other, and what is imported is a mixture. Every module
of ours imports this one through `errors`, so that a mixture is refused at the first import instead of failing somewhere
later. Invariant: nothing here imports more than `os` and `sys`.
"""

from __future__ import annotations

import os
import sys

OURS = "ipc-cache"
THEIRS = "vllm-ipc-cache"


class WrongPackage(ImportError):
    """Two distributions that ship a package `ipc_cache` are installed over each other."""


def _installed_beside(folder: str) -> str | None:
    """The name of their metadata folder in the same site folder, if there is one."""
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    return next((n for n in names if n.startswith("vllm_ipc_cache-") and n.endswith((".dist-info", ".egg-info"))), None)


def check() -> None:
    """Raises WrongPackage unless the imported package is ours, and ours alone."""
    package = sys.modules[__package__]
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = _installed_beside(folder)
    if found is None and getattr(package, "DISTRIBUTION", None) == OURS:
        return
    raise WrongPackage(
        f"the distributions {OURS} and {THEIRS} both ship a package named ipc_cache, and in {folder} files of one "
        f"have overwritten files of the other ({found or 'its __init__.py is not that of ' + OURS}); remove both and "
        f"install the one that you want: pip uninstall {OURS} {THEIRS} && pip install {OURS}"
    )


check()
