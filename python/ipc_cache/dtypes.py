"""The element types of safetensors, by the numbers of the manifest format, and what torch calls them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# name: (number in the manifest, bits of an element, name in torch or None)
_TABLE: dict[str, tuple[int, int, str | None]] = {
    "BOOL": (1, 8, "bool"),
    "F4": (2, 4, "float4_e2m1fn_x2"),  # two elements in one of torch's
    "F6_E2M3": (3, 6, None),
    "F6_E3M2": (4, 6, None),
    "U8": (5, 8, "uint8"),
    "I8": (6, 8, "int8"),
    "F8_E5M2": (7, 8, "float8_e5m2"),
    "F8_E4M3": (8, 8, "float8_e4m3fn"),
    "F8_E8M0": (9, 8, "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (10, 8, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (11, 8, "float8_e5m2fnuz"),
    "I16": (12, 16, "int16"),
    "U16": (13, 16, "uint16"),
    "F16": (14, 16, "float16"),
    "BF16": (15, 16, "bfloat16"),
    "I32": (16, 32, "int32"),
    "U32": (17, 32, "uint32"),
    "F32": (18, 32, "float32"),
    "C64": (19, 64, "complex64"),
    "F64": (20, 64, "float64"),
    "I64": (21, 64, "int64"),
    "U64": (22, 64, "uint64"),
}

NAMES: dict[int, str] = {number: name for name, (number, _, _) in _TABLE.items()}
NUMBERS: dict[str, int] = {name: number for name, (number, _, _) in _TABLE.items()}
BITS: dict[int, int] = {number: bits for number, bits, _ in _TABLE.values()}
F4 = NUMBERS["F4"]
U8 = NUMBERS["U8"]


@functools.cache
def torch_types() -> dict[int, torch.dtype]:
    """number: torch's type, of those that this torch knows."""
    import torch

    known = ((number, getattr(torch, name, None)) for number, _, name in _TABLE.values() if name is not None)
    return {number: kind for number, kind in known if kind is not None}


@functools.cache
def numbers_by_torch() -> dict[torch.dtype, int]:
    return {kind: number for number, kind in torch_types().items()}


def number_of_numpy(dtype: Any) -> int | None:
    """The number for a numpy dtype, ml_dtypes' among them; None where there is none, or the byte order is foreign."""
    if dtype.byteorder == ">":
        return None
    name = dtype.name
    aliases = {"float8_e4m3": None, "float4_e2m1fn": None}  # other formats than torch's of nearly the same name
    for number, _, known in _TABLE.values():
        if known == name and name not in aliases:
            return number
    return None
