"""The commands `ipc-cache` and `ipc-cached` of a pip installation: this process becomes the program in the package."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from . import errors
from .loader import program


def _become(name: str) -> NoReturn:
    try:
        path = program(name)
    except errors.NotFound as error:
        sys.exit(f"{name}: {error}")
    os.execv(path, [name, *sys.argv[1:]])


def ipc_cache() -> NoReturn:
    """The command line tool, ipc-cache(1)."""
    _become("ipc-cache")


def ipc_cached() -> NoReturn:
    """The broker, ipc-cached(8)."""
    _become("ipc-cached")
