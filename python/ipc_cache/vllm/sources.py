"""Which files a model is made of, and under which name it goes in the key.

A model is a folder, or a hub id with a revision; both are resolved to a folder as vLLM does, without the network once the
files are there. A hub's snapshot folder goes by repository and commit, so that id and path of one snapshot are one model;
any other folder by its real path.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

_SNAPSHOT = re.compile(r"models--(?P<repo>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})/?$")
_WEIGHTS = (".safetensors", ".bin", ".pt")
_REMOTE = re.compile(r"^[a-z0-9]+://", re.IGNORECASE)


class UnsupportedModel(ValueError):
    """A way of naming a model that the broker cannot serve; the message says what to do instead."""


@dataclass(frozen=True)
class Source:
    """`identity`: what the key's field `model` says; `folder`: where the files are."""

    identity: str
    folder: Path


def resolve(model: str, revision: str | None = None, download_dir: str | None = None) -> Source:
    """Finds the folder of a model that vLLM names `model`. Raises UnsupportedModel, or FileNotFoundError for an id that has
    not been downloaded yet."""
    if _REMOTE.match(model):
        raise UnsupportedModel(
            f"ipc_cache: {model}: remote object stores are not supported; download the model into a "
            "folder, or use --load-format runai_streamer"
        )
    if model.lower().endswith(".gguf") or ".gguf:" in model.lower():
        raise UnsupportedModel(
            f"ipc_cache: {model}: GGUF is not supported; use the safetensors checkpoint, or --load-format auto"
        )
    path = Path(model)
    if not path.is_dir():
        path = _cached_snapshot(model, revision, download_dir)
    real = Path(os.path.realpath(path))
    match = _SNAPSHOT.search(str(real))
    if match:
        return Source(f"{match['repo'].replace('--', '/')}@{match['commit']}", real)
    return Source(str(real), real)


def _cached_snapshot(model: str, revision: str | None, download_dir: str | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, cache_dir=download_dir, local_files_only=True))
    except Exception as error:
        raise FileNotFoundError(f"ipc_cache: {model} is neither a folder nor a downloaded snapshot: {error}") from error


def weight_files(folder: Path) -> list[Path]:
    """The files that vLLM's default loader would read from `folder`, and the index that chooses among them.

    Raises FileNotFoundError if there are none."""
    names = sorted(os.listdir(folder))
    for ending in _WEIGHTS:
        files = [folder / name for name in names if name.endswith(ending)]
        if files:
            index = folder / "model.safetensors.index.json"
            return files + [index] * index.is_file()
    raise FileNotFoundError(f"ipc_cache: no weight files (*.safetensors, *.bin, *.pt) in {folder}")


def stamp(files: list[Path]) -> list[tuple]:
    """What tells that a file was changed or exchanged: compared before and after a load."""
    return [
        (str(f), s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for f, s in ((f, f.stat()) for f in files)
    ]
