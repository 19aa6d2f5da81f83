"""What the built files promise: no device code in the broker, only versioned symbols in the library, an install that works."""
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("IPC_CACHE_BUILD", "build"))
BUILD = BUILD if BUILD.is_absolute() else ROOT / BUILD


def output(*words, **options):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def is_sanitized():
    return "__asan_init" in output("nm", BUILD / "ipc-cached")


def needed(file):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", file))


def test_the_broker_contains_no_device_code_and_cannot_open_libraries():
    symbols = {line.split()[-1].split("@")[0] for line in output("nm", BUILD / "ipc-cached").splitlines()}
    assert "server_run" in symbols
    assert not [s for s in symbols if s.startswith("device_") or s.startswith("ipcc_")]
    if not is_sanitized():  # the sanitizers' run-time library has all of these
        assert not symbols & {"dlopen", "fork", "vfork", "execve", "execvp", "posix_spawn", "system", "popen"}


def test_neither_broker_nor_library_needs_a_gpu_library():
    for file in "ipc-cached", "ipc-cache", "libipc_cache.so":
        assert not [name for name in needed(BUILD / file) if re.search("cuda|nvidia|amdhip|mcruntime", name)], file


def test_the_library_exports_its_versioned_functions_and_nothing_else():
    exported = [line.split()[-1] for line in output("nm", "-D", "--defined-only", BUILD / "libipc_cache.so").splitlines()]
    exported = [name for name in exported if not name.startswith(("IPC_CACHE_", "__asan", "__odr_asan"))]
    header = (ROOT / "broker/client/ipc_cache.h").read_text()
    declared = set(re.findall(r"\b(ipcc_\w+)\(", re.sub(r"/\*.*?\*/", "", header, flags=re.S)))
    assert {name.split("@@")[0] for name in exported} == declared
    assert all("@@IPC_CACHE_" in name for name in exported)


PROGRAM = """
#include <ipc_cache.h>
#include <stdio.h>
int main(void)
{
    struct ipcc_client *client;
    struct ipcc_error err;
    struct ipcc_client_options options = {.dir = "/nonexistent"};
    printf("%s %d %s\\n", ipcc_version(), ipcc_connect(&client, &options, &err), err.message);
    return 0;
}
"""


def test_a_program_builds_against_the_installed_files_and_uninstall_leaves_nothing(tmp_path):
    if is_sanitized():
        pytest.skip("the sanitized library cannot be loaded into an ordinary program")
    make = ["make", "-C", ROOT, f"BUILD={BUILD}", f"DESTDIR={tmp_path}", "PREFIX=/usr"]
    subprocess.run([*make, "install"], check=True, stdout=subprocess.DEVNULL)
    environment = {**os.environ, "PKG_CONFIG_LIBDIR": f"{tmp_path}/usr/lib/pkgconfig", "PKG_CONFIG_SYSROOT_DIR": str(tmp_path)}
    flags = output("pkg-config", "--cflags", "--libs", "ipc_cache", env=environment).split()
    source = tmp_path / "program.c"
    source.write_text(PROGRAM)
    subprocess.run(["gcc", "-Wall", "-Werror", "-o", tmp_path / "program", source, *flags], check=True)
    said = output(tmp_path / "program", env={**os.environ, "LD_LIBRARY_PATH": f"{tmp_path}/usr/lib"})
    assert re.match(r"\d+\.\d+\.\d+ 7 no broker: /nonexistent does not exist", said)
    assert os.access(tmp_path / "usr/bin/ipc-cache", os.X_OK) and os.access(tmp_path / "usr/sbin/ipc-cached", os.X_OK)
    assert {p.name for p in (tmp_path / "usr/share/man").rglob("*.?")} >= {
        "ipc-cache.1", "ipc-cached.8", "ipc-cache-manifest.5", "ipc-cache-protocol.7"}
    subprocess.run([*make, "uninstall"], check=True, stdout=subprocess.DEVNULL)
    assert not [p for p in (tmp_path / "usr").rglob("*") if not p.is_dir()]


def test_the_users_flags_survive():
    said = output("make", "-C", ROOT, "-n", "-B", "V=1", "BUILD=/nowhere", "CFLAGS=-O1 -DMINE=1", "LDFLAGS=-Wl,-z,now",
                  "CC=a-compiler", "/nowhere/ipc-cached")
    compiles = [line for line in said.splitlines() if " -c " in line]
    assert compiles and all(line.startswith("a-compiler ") and "-O1 -DMINE=1" in line for line in compiles)
    assert "-Wl,-z,now" in said


def test_public_headers_stand_alone_in_c_and_cpp(tmp_path):
    for compiler, name in ("gcc", "a.c"), ("g++", "a.cc"):
        if subprocess.run(["which", compiler], stdout=subprocess.DEVNULL, check=False).returncode != 0:
            pytest.skip(f"{compiler} is not installed")
        (tmp_path / name).write_text('#include "broker/client/ipc_cache.h"\nint main(void) { return IPCC_DTYPE_BF16 != 15; }\n')
        subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", "-I", ROOT, "-o", tmp_path / "a", tmp_path / name],
                       check=True)
        subprocess.run([tmp_path / "a"], check=True)


def test_the_running_broker_can_neither_start_processes_nor_open_files(broker):
    if is_sanitized():
        pytest.skip("builds with sanitizers have no sandbox: their run-time library opens files")
    status = pathlib.Path(f"/proc/{broker.pid}/status").read_text()
    assert re.search(r"^Seccomp:\s+2$", status, re.M) and re.search(r"^NoNewPrivs:\s+1$", status, re.M)
