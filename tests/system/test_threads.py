"""Threads: the programs of tests/tsan, built with ThreadSanitizer, find no race against a real broker."""
import os
import pathlib
import subprocess

import pytest

BUILD = pathlib.Path(os.environ.get("IPC_CACHE_BUILD", "build"))


def program(name):
    path = BUILD / "tsan" / "tests" / name
    if not path.exists():
        pytest.skip(f"{path} is not built: make test-system builds it")
    return path


def run(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=300, check=False)
    assert done.returncode == 0 and "ThreadSanitizer" not in done.stdout, done.stdout


def test_the_client_library_has_no_races(broker, resident):
    run(program("client"), broker.directory, "small")
    assert broker.serves()


def test_filling_with_several_threads_has_no_races():
    run(program("fill"))
