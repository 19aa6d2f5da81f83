"""What tensors cannot carry of an exported module: the attribute STATE of its manifest, a JSON object.

    version    of this format
    same       {name: first name of the same object}
    deleted    [names that were there and are not any more]        none  [names that are None now]
    flags      {name: {attribute of the tensor: value}}            host  [names of tensors on the host, of a GPU's model]
    reshaped   [parameters that were not there before in their shape]; null where "before" is not known
    plain      {module path: {attribute: tree, see structure.py}}
    scalars    {module path: {attribute: value}}

It comes from another process, perhaps another user's: read() checks all of it and decodes its values before anything is
bound. Whether it fits a skeleton is fit.py's question.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, TypeVar

from .. import errors
from ..weights import Weights
from .structure import MAX_DEPTH, Tree
from .values import NotPlain, decode

STATE = "ipc-cache.engine"
VERSION = 2

T = TypeVar("T")


@dataclass(frozen=True)
class State:
    """The checked state: every name is a tensor's of the model where it must be one; values, in trees too, are decoded."""

    same: dict[str, str]
    deleted: list[str]
    none: list[str]
    flags: dict[str, dict[str, Any]]
    host: frozenset[str]
    reshaped: frozenset[str] | None
    plain: dict[str, dict[str, Tree]]
    scalars: dict[str, dict[str, Any]]


# Where in the document: a field, or (where, name or number in it). Told only when something is wrong there.
At = str | tuple["At", str | int]


def _told(at: At) -> str:
    return at if isinstance(at, str) else f"{_told(at[0])}[{at[1]!r}]"


class _Reader:
    """Takes the document apart; `at` says where in it a fault is."""

    def __init__(self, document: dict[str, Any], names: Container[str], model: str) -> None:
        self.document, self.names, self.model = document, names, model

    def invalid(self, at: At, what: str) -> errors.Invalid:
        return invalid(self.model, f"{_told(at)}: {what}")

    def mapping(self, at: At, value: Any, read: Callable[[At, Any], T]) -> dict[str, T]:
        if not isinstance(value, dict):
            raise self.invalid(at, f"must be an object, not {_short(value)}")
        return {name: read((at, name), entry) for name, entry in value.items()}

    def entries(self, at: At, value: Any, read: Callable[[At, Any], T]) -> list[T]:
        if not isinstance(value, list):
            raise self.invalid(at, f"must be a list, not {_short(value)}")
        return [read((at, i), entry) for i, entry in enumerate(value)]

    def text(self, at: At, value: Any) -> str:
        if not isinstance(value, str):
            raise self.invalid(at, f"must be a name, not {_short(value)}")
        return value

    def tensor(self, at: At, value: Any) -> str:
        if self.text(at, value) not in self.names:
            raise self.invalid(at, f"the model has no tensor {_short(value)}")
        return str(value)

    def value(self, at: At, value: Any) -> Any:
        try:
            return decode(value)
        except NotPlain as error:
            raise self.invalid(at, str(error)) from None

    def attributes(self, at: At, value: Any) -> dict[str, Any]:
        return self.mapping(at, value, self.value)

    def tree(self, at: At, tree: Any, depth: int = 0) -> Tree:
        kind, *body = tree if isinstance(tree, list) and tree else [None]
        if kind == "keep" and not body:
            return [kind]
        if kind == "tensor" and len(body) == 1:
            return [kind, self.tensor(at, body[0])]
        if kind == "value" and len(body) == 1:
            return [kind, self.value(at, body[0])]
        if kind in ("list", "tuple", "dict") and len(body) == 1 and depth < MAX_DEPTH:
            read = self.pair if kind == "dict" else self.tree
            return [kind, self.entries(at, body[0], lambda place, part: read(place, part, depth + 1))]
        raise self.invalid(at, f"{_short(tree)} describes no value, or one of more than {MAX_DEPTH} nested containers")

    def pair(self, at: At, pair: Any, depth: int) -> list[Any]:
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) not in (str, int):
            raise self.invalid(at, f"must be a key, a text or a number, and what stands there, not {_short(pair)}")
        return [pair[0], self.tree(at, pair[1], depth)]

    def trees(self, at: At, value: Any) -> dict[str, Tree]:
        return self.mapping(at, value, self.tree)

    def same(self, at: At, value: Any) -> dict[str, str]:
        same = self.mapping(at, value, self.tensor)
        for name, first in same.items():
            self.tensor(at, name)
            if first in same:
                raise self.invalid((at, name), f"{first} is not the first name of its object")
        return same

    def field(self, name: str, read: Callable[[At, Any], T]) -> T:
        if name not in self.document:
            raise self.invalid(name, "is missing")
        return read(name, self.document[name])

    def state(self) -> State:
        def names(at: At, value: Any) -> list[str]:
            return self.entries(at, value, self.text)

        def tensors(at: At, value: Any) -> frozenset[str]:
            return frozenset(self.entries(at, value, self.tensor))

        def flags(at: At, value: Any) -> dict[str, dict[str, Any]]:
            return self.mapping(at, value, self.attributes)

        return State(
            same=self.field("same", self.same),
            deleted=self.field("deleted", names),
            none=self.field("none", names),
            flags=self.field("flags", flags),
            host=self.field("host", tensors),
            reshaped=None if self.document.get("reshaped", ()) is None else self.field("reshaped", tensors),
            plain=self.field("plain", lambda at, value: self.mapping(at, value, self.trees)),
            scalars=self.field("scalars", flags),
        )


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:60] + "..."


def invalid(model: str, what: str) -> errors.Invalid:
    """The error for a state that no export() has written."""
    return errors.Invalid(f"{model}: attribute {STATE}: {what}; evict the model and publish it again")


def read(weights: Weights, names: Container[str]) -> State:
    """The state of attached weights whose tensors are `names`. Raises Usage where there is none, Mismatch for another
    version of the format, Invalid for anything else that export() does not write."""
    model = weights.manifest.name
    if STATE not in weights.manifest.attributes:
        raise errors.Usage(f"{model} was not published by export(); attach_module() binds checkpoints")
    document = weights.attribute(STATE)
    if not isinstance(document, dict):
        raise invalid(model, f"must be a JSON object, not {_short(document)}")
    version = document.get("version")
    if version != VERSION:
        raise errors.Mismatch(
            f"{model} was exported in version {_short(version)}, this package binds {VERSION}; publish it again",
            0, "export version", str(VERSION), _short(version),
        )  # fmt: skip
    return _Reader(document, names, model).state()
