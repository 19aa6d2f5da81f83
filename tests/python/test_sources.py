"""A source distribution has what the C parts are built of."""

import ast
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def sources(tmp_path):
    """What setup.py copies, and nothing else."""
    setup = ast.parse((ROOT / "python" / "setup.py").read_text())
    patterns = [
        ast.literal_eval(n.value) for n in setup.body if isinstance(n, ast.Assign) and n.targets[0].id == "SOURCES"
    ]
    for pattern in patterns[0]:
        found = list(ROOT.glob(pattern))
        assert found, pattern
        for source in found:
            target = tmp_path / source.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copy(source, target)
    return tmp_path


def test_every_header_is_there(sources):
    included = {
        (source, name)
        for source in sources.rglob("*.[ch]")
        for name in re.findall(r'^#include "(.*)"', source.read_text(), re.MULTILINE)
    }
    assert included
    assert [pair for pair in included if not (sources / pair[1]).exists()] == []


def test_make_finds_its_parts(sources):
    done = subprocess.run(["make", "--dry-run", "BPF=0", "all"], cwd=sources, capture_output=True, text=True)
    assert done.returncode == 0 and "libipc_cache.so" in done.stdout, done.stderr
