"""Fixtures of the tracing tests: those of the system tests, a kernel that can be traced, the tools that trace."""
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SYSTEM = ROOT / "tests/system"
sys.path[:0] = [str(SYSTEM), str(pathlib.Path(__file__).parent)]

_spec = importlib.util.spec_from_file_location("system_conftest", SYSTEM / "conftest.py")
_system = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_system)
for _name in ("place", "binaries", "folder", "start_broker", "broker", "cli", "client", "small", "resident", "root",
              "other_users", "not_sanitized", "pytest_configure"):
    globals()[_name] = getattr(_system, _name)

import tracing  # noqa: E402


@pytest.fixture(scope="session")
def build():
    path = pathlib.Path(os.environ.get("IPC_CACHE_BUILD", "build"))
    return path if path.is_absolute() else ROOT / path


@pytest.fixture(scope="session")
def with_probes(build):
    import sites  # pylint: disable=import-outside-toplevel
    if not sites.probes(build / "ipc-cached"):
        pytest.skip("built without probes: systemtap-sdt-dev was not there, or USDT=0")


@pytest.fixture(scope="session")
def kernel(with_probes):
    """Root on a kernel that can be traced, with tracefs mounted."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to trace")
    if not os.path.exists("/sys/kernel/btf/vmlinux"):
        pytest.skip("needs a kernel with BTF")
    mounted = not os.path.exists("/sys/kernel/tracing/events")
    if mounted:
        subprocess.run(["mount", "-t", "tracefs", "nodev", "/sys/kernel/tracing"], check=True)
    yield
    if mounted:
        subprocess.run(["umount", "--lazy", "/sys/kernel/tracing"], check=True)


@pytest.fixture
def lat(kernel, build, binaries):
    """The tool, which is told of the command that the tests use: it is neither installed nor does it run for long."""
    if not (build / "ipc-cache-lat").exists():
        pytest.skip("ipc-cache-lat was not built: clang, bpftool or libbpf was not there, or BPF=0")
    return tracing.Lat(build / "ipc-cache-lat", binaries.cli)


@pytest.fixture
def bpftrace(kernel):
    if shutil.which("bpftrace") is None:
        pytest.skip("needs bpftrace")
