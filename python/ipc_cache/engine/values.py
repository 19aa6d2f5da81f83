"""Host state as JSON: scalars, and lists, tuples and dicts of them, and torch's dtypes; each comes back as what it was.

decode() takes what another process has written: whatever encode() does not make is NotPlain.
"""

from __future__ import annotations

from typing import Any

import torch

MAX_DEPTH = 16  # of containers in containers

_DTYPES = {str(kind).removeprefix("torch."): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


class NotPlain(Exception):
    """A value that cannot travel, or a document that is no value's."""


def encode(value: Any, depth: int = 0) -> Any:
    """A JSON document for a value; NotPlain. Subclasses (an enum that is an int, say) cannot travel: they would come
    back as something else."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if depth >= MAX_DEPTH:
        raise NotPlain(f"more than {MAX_DEPTH} containers in each other")
    if kind is list:
        return {"list": [encode(entry, depth + 1) for entry in value]}
    if kind in (tuple, torch.Size):
        return {"tuple" if kind is tuple else "size": [encode(entry, depth + 1) for entry in value]}
    if kind is dict:
        return {"dict": [[encode(name, depth + 1), encode(entry, depth + 1)] for name, entry in value.items()]}
    if kind is torch.dtype:
        return {"dtype": str(value).removeprefix("torch.")}
    raise NotPlain(f"{kind.__module__}.{kind.__qualname__}")


def decode(document: Any, depth: int = 0) -> Any:
    """The value again; NotPlain."""
    if document is None or isinstance(document, (bool, int, float, str)):
        return document
    if not isinstance(document, dict) or len(document) != 1 or depth >= MAX_DEPTH:
        raise NotPlain(f"{type(document).__name__} is no value, or in more than {MAX_DEPTH} others")
    ((kind, body),) = document.items()
    if kind == "dtype" and isinstance(body, str) and body in _DTYPES:
        return _DTYPES[body]
    if isinstance(body, list):
        if kind == "dict":
            return _decode_dict(body, depth + 1)
        entries = [decode(entry, depth + 1) for entry in body]
        if kind == "list":
            return entries
        if kind == "tuple":
            return tuple(entries)
        if kind == "size" and all(type(entry) is int and 0 <= entry < 1 << 63 for entry in entries):
            return torch.Size(entries)
    raise NotPlain(f"{str(kind)[:40]!r} with {type(body).__name__} is no value")


def _decode_dict(pairs: list[Any], depth: int) -> dict[Any, Any]:
    made = {}
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise NotPlain("a dict's entry is no pair")
        name = decode(pair[0], depth)
        try:
            made[name] = decode(pair[1], depth)
        except TypeError:  # a key that is a list, say
            raise NotPlain(f"{type(name).__name__} is no key") from None
    return made
