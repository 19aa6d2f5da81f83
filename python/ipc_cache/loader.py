"""load(): the command `ipc-cache load`, which reads safetensors files at the disk's speed and publishes them.

The command is that of this package, or lies beside the library that $IPC_CACHE_LIBRARY names, or is found on $PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from . import _library, errors
from .client import StrPath

_FOLDER = os.path.dirname(os.path.abspath(__file__))


@dataclass(frozen=True)
class Loaded:
    """already_resident: the files are those of a model that was there, nothing was loaded. nbytes: of all tensors."""

    name: str
    key_id: str
    generation: int
    already_resident: bool
    tensors: int
    segments: int
    nbytes: int
    seconds: float


def program(name: str) -> str:
    """The path of `ipc-cache` or `ipc-cached`; NotFound."""
    beside = os.path.dirname(os.path.abspath(_library.path())) if os.sep in _library.path() else ""
    for folder in (os.path.join(_FOLDER, "bin"), beside):
        path = os.path.join(folder, name)
        if folder and os.access(path, os.X_OK):
            return path
    found = shutil.which(name)
    if found is None:
        raise errors.NotFound(f"the program {name} is not in this package, beside the C library, nor on $PATH")
    return found


def _failure(document: dict[str, Any]) -> errors.Error:
    return errors.make(
        document["code"], document["message"], 0, document["field"] or "", document["expected"] or "",
        document["got"] or "",
    )  # fmt: skip


def _run(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise errors.make(done.returncode if done.returncode > 0 else 1, f"{command[0]}: {said}") from None
    if "error" in document:
        raise _failure(document["error"])
    return dict(document)


def load(
    path: StrPath,
    *,
    name: str | None = None,
    device: str = "host",
    replace: bool = False,
    wait: float = 0,
    visibility: str = "owner",
    threads: int | None = None,
    include: list[str] | None = None,
    exclude: list[str] | None = None,
    dir: StrPath | None = None,
    timeout: float = 10,
) -> Loaded:
    """Makes a safetensors file or model folder resident, or finds that it is already.

    device: "host", "cuda:0", a GPU's UUID, "auto". replace: load it even if it is resident. wait: seconds to wait for
    somebody else who loads the same. include, exclude: patterns of names of tensors, as of fnmatch.
    Raises NoBroker, NotFound, Invalid (a damaged file), Mismatch (another content is resident), NoMemory, Busy.
    """
    command = [program("ipc-cache"), "load", "--json", "--timeout", str(max(_library.milliseconds(timeout), 0))]
    if dir is not None:
        command += ["--dir", os.fspath(dir)]
    if name is not None:
        command += ["--name", name]
    waiting = _library.milliseconds(wait)
    command += ["--device", "host" if device == "cpu" else device, "--visible", visibility]
    command += ["--wait", "forever" if waiting < 0 else str(waiting)]
    command += ["--replace"] if replace else []
    command += ["--threads", str(threads)] if threads is not None else []
    for option, patterns in (("--include", include), ("--exclude", exclude)):
        for pattern in patterns or []:
            command += [option, pattern]
    document = _run([*command, "--", os.fspath(path)])
    return Loaded(
        name=document["name"], key_id=document["key_id"], generation=document["generation"],
        already_resident=document["already_resident"], tensors=document["tensors"], segments=document["segments"],
        nbytes=document["bytes"], seconds=document["seconds"],
    )  # fmt: skip
