"""What importing costs and brings in; and what else is called ipc_cache."""

import os
import shutil
import subprocess
import sys

import pytest

import ipc_cache

from harness import run_python

PACKAGE = os.path.dirname(ipc_cache.__file__)


def test_importing_loads_neither_torch_nor_numpy_nor_the_library():
    out, _ = run_python(
        """
        import sys
        import ipc_cache
        print([name for name in ("torch", "numpy", "ctypes", "asyncio", "subprocess") if name in sys.modules])
        """,
        "",
    )
    assert out.strip() == "[]"


def test_everything_public_is_there():
    for name in ipc_cache.__all__:
        if name == "attach_module":  # needs torch
            continue
        assert getattr(ipc_cache, name) is not None
        assert name in dir(ipc_cache)
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = ipc_cache.nothing_such


def test_the_version_is_that_of_the_library():
    from ipc_cache import _library

    assert _library.library().ipcc_version().decode() == ipc_cache.__version__


def _import_from(folder):
    return subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\nimport ipc_cache.client"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def site(tmp_path):
    """A site folder with a copy of our package."""
    shutil.copytree(PACKAGE, tmp_path / "ipc_cache")
    return tmp_path


def test_a_package_of_the_same_name_beside_ours_is_reported(site):
    assert _import_from(site).returncode == 0
    os.mkdir(site / "vllm_ipc_cache-0.2.0.dist-info")
    for step in ("beside", "overwritten"):
        if step == "overwritten":
            # Installed after ours: their __init__ is what is imported, and the rest is ours.
            (site / "ipc_cache" / "__init__.py").write_text("__version__ = '0.2.0'\n")
        done = _import_from(site)
        assert done.returncode == 1
        said = done.stderr.strip().splitlines()[-1]
        assert "WrongPackage" in said and "pip uninstall ipc-cache vllm-ipc-cache" in said, step


def test_the_other_package_whose_metadata_is_gone_is_reported_too(site):
    (site / "ipc_cache" / "__init__.py").write_text("__version__ = '0.2.0'\n")
    assert "WrongPackage" in _import_from(site).stderr


def test_the_programs_are_those_of_the_package():
    for module in (["-m", "ipc_cache"], ["-c", "from ipc_cache._programs import ipc_cached; ipc_cached()"]):
        done = subprocess.run([sys.executable, *module, "--version"], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and done.stdout.strip().endswith(ipc_cache.__version__), done
