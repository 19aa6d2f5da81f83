"""The structures that ctypes declares are those of the C header, as a C compiler lays them out."""

import ctypes
import pathlib
import shutil
import subprocess

import pytest

from ipc_cache import _library

ROOT = pathlib.Path(__file__).resolve().parents[2]
STRUCTURES = {
    "ipcc_error": _library.ErrorStruct,
    "ipcc_field": _library.Field,
    "ipcc_client_options": _library.ClientOptions,
    "ipcc_attach_options": _library.AttachOptions,
    "ipcc_model_facts": _library.ModelFacts,
    "ipcc_tensor": _library.Tensor,
    "ipcc_source": _library.Source,
    "ipcc_attribute": _library.Attribute,
    "ipcc_publish_options": _library.PublishOptions,
    "ipcc_holder": _library.Holder,
    "ipcc_listing": _library.Listing,
    "ipcc_list": _library.List,
    "ipcc_stat": _library.Stat,
}


def test_every_structure_is_looked_at():
    declared = {v for v in vars(_library).values() if isinstance(v, type) and issubclass(v, ctypes.Structure)}
    assert declared - set(STRUCTURES.values()) == {_library.Views}  # made for Python, below


def test_offsets_and_sizes(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not (ROOT / "broker" / "client" / "ipc_cache.h").exists():
        pytest.skip("needs a C compiler and the C sources")
    lines = ['#include "broker/client/ipc_cache.h"', "#include <stdio.h>", "int main(void) {"]
    expected = []
    for name, declared in STRUCTURES.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        expected.append(f"{name} {ctypes.sizeof(declared)}")
        for field in declared._fields_:
            at = getattr(declared, field[0])
            lines.append(
                f'printf("{name}.{field[0]} %zu %zu\\n", offsetof(struct {name}, {field[0]}), '
                f"sizeof(((struct {name} *)0)->{field[0]}));"
            )
            expected.append(f"{name}.{field[0]} {at.offset} {at.size}")
    (tmp_path / "layout.c").write_text("\n".join([*lines, "}"]))
    subprocess.run([compiler, "-I", ROOT, "-o", tmp_path / "layout", tmp_path / "layout.c"], check=True)
    said = subprocess.run([tmp_path / "layout"], stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")[:-1]
    assert said == expected
