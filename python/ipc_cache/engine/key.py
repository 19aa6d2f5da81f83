"""Keys: what decides a model's bytes, as the strings that the broker compares.

Equal inputs give equal strings in every process and version of Python: numbers and booleans in one form, mappings and
sequences as JSON with sorted names, and what is too long for a field as its digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from .. import errors

MAX_VALUE = 1024  # longer ones become digests; a field holds 4096 bytes, all of them together 16384
_NAME = re.compile(r"[a-z0-9_.-]{1,63}")


def _plain(value: Any) -> Any:
    """As JSON can say it; Usage for what has no form that is the same everywhere."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else repr(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(_plain(name)): _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(entry) for entry in value), key=lambda entry: json.dumps(entry, sort_keys=True))
    raise errors.Usage(f"a key cannot say {value!r} of type {type(value).__name__}; give a string for it")


def _canonical(value: Any) -> str:
    plain = _plain(value)
    if isinstance(plain, str):
        return plain
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(value: Any) -> str:
    """32 hexadecimal digits for anything that a key can say."""
    return hashlib.sha256(_canonical(value).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def file_digest(path: str | os.PathLike[str]) -> str:
    """32 hexadecimal digits for a file's content, such as a configuration's."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:32]


def build_key(fields: Mapping[str, Any]) -> dict[str, str]:
    """The key's fields by name. None is left out; control characters and long values become a digest."""
    key = {}
    for name, value in fields.items():
        if not _NAME.fullmatch(name):
            raise errors.Usage(f"{name!r} is no name of a field: 1 to 63 characters of a-z 0-9 _ . -")
        if value is None:
            continue
        text = _canonical(value)
        if len(text.encode("utf-8", "surrogateescape")) > MAX_VALUE or not text.isprintable():
            text = "sha256:" + digest(value)
        key[name] = text
    return dict(sorted(key.items()))
