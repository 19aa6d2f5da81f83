"""The catalogue is an ABI: header, manual page, tool and built files say the same; and a silent site costs next to nothing."""
import os
import pathlib
import re
import subprocess

import pytest

import sites

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = ("ipc-cached", "ipc-cache", "libipc_cache.so")


def in_header():
    """name: number of arguments."""
    text = (ROOT / "bpf/probes.h").read_text()
    return {name: len(arguments.split(",")) for name, arguments in
            re.findall(r"\bPROBE\((\w+__\w+),\s*([^)]*)\)", text)}


def in_manual():
    text = (ROOT / "tools/man/ipc-cache-probes.7").read_text()
    return {name: len(arguments.split()) for name, arguments in
            re.findall(r"^\.It Fn (\w+__\w+) (.*)$", text, re.M)}


def in_tool():
    text = (ROOT / "bpf/lat/events.h").read_text()
    return {name: (int(count), int(mask, 0)) for name, count, mask in
            re.findall(r"X\((\w+__\w+), (\d+), (\w+), TRACK", text)}


def in_files(build):
    found = {}
    for file in FILES:
        for probe in sites.probes(build / file):
            found.setdefault(probe.name, {})[file] = probe
    return found


def test_header_manual_tool_and_files_have_the_same_probes(build, with_probes):
    header = in_header()
    assert len(header) == 34
    assert in_manual() == header
    assert {name: count for name, (count, _) in in_tool().items()} == header
    assert {name: next(iter(files.values())).arguments for name, files in in_files(build).items()} == header


def test_every_site_has_a_semaphore_and_the_provider(build, with_probes):
    for file in FILES:
        for probe in sites.probes(build / file):
            assert probe.provider == "ipc_cache" and probe.semaphore != 0, probe


def test_broker_command_and_library_have_the_probes_of_their_parts(build, with_probes):
    found = in_files(build)
    for name, files in found.items():
        broker = re.match("connection|request|key|lease|publish|model", name)
        assert ("ipc-cached" in files) == bool(broker), name
        assert ("ipc-cache" in files) != bool(broker) or name == "phase__finished", name
    for name in "connect__started", "attach__finished", "map__finished", "phase__finished", "segment__mapped":
        assert "libipc_cache.so" in found[name]


@pytest.mark.parametrize("file", FILES)
def test_a_silent_site_is_one_comparison_and_a_branch_that_is_not_taken(build, with_probes, file):
    if os.uname().machine != "x86_64":
        pytest.skip("knows the instructions of x86-64 only")
    loads = sites.semaphore_loads(build / file)
    assert len(loads) >= len({probe.name for probe in sites.probes(build / file)})
    for name, code in loads:
        assert [operation for _, operation, _ in code[:2]] == ["cmpw", "jne"], (name, code)


def test_without_usdt_nothing_is_left(tmp_path):
    source = tmp_path / "a.c"
    source.write_text('#include "bpf/probes.h"\nvoid f(int *p) { PROBE_CONNECT_STARTED(*p); }\n')
    command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}", "-DNO_USDT", "-c", "-o", tmp_path / "a.o", source]
    subprocess.run(command, check=True)
    assert sites.probes(tmp_path / "a.o") == []
    code = sites.instructions(tmp_path / "a.o")
    assert [operation for _, operation, _ in code if operation not in ("endbr64", "nop")] == ["ret"]
