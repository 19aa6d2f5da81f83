"""Every bpftrace script runs, and prints lines of the shape that its sample shows."""
import os
import pathlib
import shutil
import subprocess
import time

import pytest

from library import Library
from protocol import Failure
from tracing import Script, shape

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "bpf").glob("*.bt"))


def cold(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


@pytest.fixture
def work(broker, binaries, resident, folder, tmp_path):
    """Everything that the scripts show: attaches, loads by all paths, mismatches, a lease that stays."""
    changed = tmp_path / "changed"
    shutil.copytree(resident, changed)
    with (changed / "model.safetensors").open("ab") as file:
        file.write(b"x")

    def run():
        cli = broker.cli
        cli("attach", "small", "--repeat", 20, expect=0)
        with cli.holding("small"):
            time.sleep(0.05)
        with broker.connect() as client, pytest.raises(Failure):
            client.attach("small", key={"dtype": "bf16"})
        cli("attach", "small", "--sources", changed, expect=4)
        for how in "mmap", "buffered", "direct":
            cold(f"{resident}/model.safetensors")
            cli("load", resident, "--name", "small", "--replace", "--io", how, expect=0)
    return run


def arguments(name, binaries):
    return {"leases": [binaries.broker], "mismatches": [binaries.broker, binaries.cli], "uring-depth": ["ipc-cache"],
            "attach-slow": [binaries.cli, 1]}.get(name, [binaries.cli])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_it_prints_what_its_sample_shows(bpftrace, binaries, broker, work, path):
    script = Script(path)
    assert "Usage: bpftrace " + path.name in script.head
    with script.running(*arguments(path.stem, binaries)) as tracer:
        work()
        with broker.cli.holding("small"):
            time.sleep(1.1)  # the scripts that print each second do
            printed = tracer.end().text
    # Names and the buckets of histograms are those of this run; numbers are made equal.
    lines = {shape(line).replace("small", "minilm") for line in printed.splitlines()}
    shown = [shape(line) for line in script.sample() if shape(line) and not shape(line).startswith("Attaching")]
    assert shown
    assert set(shown) <= lines, (set(shown) - lines, sorted(lines))


def test_the_shared_library_is_traced_without_a_pid(bpftrace, build, broker, resident, not_sanitized):
    with Script(ROOT / "bpf/attach-slow.bt").running(build / "libipc_cache.so", 1) as tracer:
        Library(build / "libipc_cache.so").attach(broker.directory, "small")
        time.sleep(0.3)
        printed = tracer.end().text
    assert [line.split()[-1] for line in printed.splitlines() if line.startswith(str(os.getpid()))] == ["small"]


RUNNER = ROOT / "bpf/ipc-cache-trace"


def run(*words, prefix=(), **environment):
    return subprocess.run([*prefix, RUNNER, *map(str, words)], check=False, capture_output=True, text=True,
                          env={**os.environ, **environment})


def test_the_runner_lists_the_scripts():
    listed = run().stdout
    assert [line.split(":")[0].strip() for line in listed.splitlines()] == [path.stem for path in SCRIPTS]


def test_the_runner_finds_the_files_in_use(bpftrace, broker, resident):
    with subprocess.Popen([RUNNER, "leases"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline().startswith(b"Attaching")
        process.send_signal(2)
        process.communicate(timeout=60)


def test_an_old_bpftrace_is_told(bpftrace, tmp_path):
    fake = tmp_path / "bpftrace"
    fake.write_text("#!/bin/sh\necho bpftrace v0.11.3\n")
    fake.chmod(0o755)
    done = run("leases", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 7 and "bpftrace 0.11.3 is too old for these scripts; 0.17 or newer is needed" in done.stderr


def test_without_privileges_or_with_a_wrong_name_the_runner_says_so(root, other_users, place):
    folder = place / "bpf"
    if not folder.exists():
        shutil.copytree(ROOT / "bpf", folder)
    done = subprocess.run(["setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups", folder / "ipc-cache-trace", "leases"],
                          check=False, capture_output=True, text=True)
    assert done.returncode == 6 and "bpftrace needs root: sudo ipc-cache-trace leases" in done.stderr
    done = run("nothing")
    assert done.returncode == 2 and "there is no script 'nothing'" in done.stderr


HOSTILE = """
import mmap, os, subprocess, sys
path = sys.argv[1] + "/libipc_cache.so"
with open(path, "wb") as file:
    file.write(bytes(4096))
with open(path, "rb") as file:
    mapped = mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)
os.unlink(path)
os.mkfifo(path)
sys.exit(subprocess.run(sys.argv[2:], timeout=60).returncode)
"""


def test_a_fifo_in_a_librarys_place_does_not_hang_the_search(tmp_path):
    """In a PID namespace of its own, where nobody else has mapped a library of this name; the script is a copy, which has no
    build beside it."""
    for file in (ROOT / "bpf" / "ipc-cache-trace", ROOT / "bpf" / "leases.bt", ROOT / "bpf" / "attach-slow.bt"):
        shutil.copy(file, tmp_path)
    ran = subprocess.run(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "/usr/bin/python3", "-c", HOSTILE,
                          tmp_path, "sh", tmp_path / "ipc-cache-trace", "attach-slow"], capture_output=True, text=True)
    assert ran.returncode == 3, ran.stderr
