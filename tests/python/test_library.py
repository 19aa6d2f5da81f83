"""Libraries that do not fit: the error is one sentence that names both versions and the way out."""

import shutil
import subprocess

import pytest

from harness import run_python


def compiled(folder, source):
    """A shared library of that C source."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (folder / "library.c").write_text(source)
    path = folder / "libipc_cache.so.0"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, folder / "library.c"], check=True)
    return str(path)


def failure(path):
    out, _ = run_python(
        """
        import ipc_cache
        try:
            ipc_cache.models()
        except ipc_cache.OldLibrary as error:
            print(type(error).__name__, error)
        """,
        "",
        IPC_CACHE_LIBRARY=path,
    )
    return out.strip()


@pytest.mark.parametrize(("version", "word"), [("0.0.9", "older"), ("7.0.0", "newer")])
def test_another_version(tmp_path, version, word):
    import ipc_cache

    path = compiled(tmp_path, f'const char *ipcc_version(void) {{ return "{version}"; }}')
    said = failure(path)
    assert said.startswith("OldLibrary") and path in said
    assert f"version {version}, a" in said and word in said and ipc_cache.__version__ in said


def test_a_missing_function(tmp_path):
    import ipc_cache

    path = compiled(tmp_path, f'const char *ipcc_version(void) {{ return "{ipc_cache.__version__}"; }}')
    assert "has no function ipcc_" in failure(path)


def test_no_library_at_all(tmp_path):
    assert "cannot be used" in failure(str(tmp_path / "missing.so"))


def test_something_else(tmp_path):
    assert "cannot be used" in failure(compiled(tmp_path, "int other;"))
