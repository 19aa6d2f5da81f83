"""Host state as JSON: scalars, and lists, tuples and dicts of them, and torch's dtypes; each comes back as what it was."""

from __future__ import annotations

from typing import Any

import torch


class NotPlain(Exception):
    """A value that cannot travel."""


def encode(value: Any) -> Any:
    """A JSON document for a value; NotPlain. Subclasses (an enum that is an int, say) cannot travel: they would come
    back as something else."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return {"list": [encode(entry) for entry in value]}
    if kind in (tuple, torch.Size):
        return {"tuple" if kind is tuple else "size": [encode(entry) for entry in value]}
    if kind is dict:
        return {"dict": [[encode(name), encode(entry)] for name, entry in value.items()]}
    if kind is torch.dtype:
        return {"dtype": str(value).removeprefix("torch.")}
    raise NotPlain(f"{kind.__module__}.{kind.__qualname__}")


def decode(document: Any) -> Any:
    """The value again."""
    if not isinstance(document, dict):
        return document
    ((kind, body),) = document.items()
    if kind == "list":
        return [decode(entry) for entry in body]
    if kind == "tuple":
        return tuple(decode(entry) for entry in body)
    if kind == "size":
        return torch.Size(decode(entry) for entry in body)
    if kind == "dict":
        return {decode(name): decode(entry) for name, entry in body}
    if kind == "dtype":
        found = getattr(torch, str(body), None)
        if isinstance(found, torch.dtype):
            return found
    raise NotPlain(f"{kind} {body!r}")
