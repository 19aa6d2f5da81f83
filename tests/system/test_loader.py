"""How bytes get from files into memory: every way of reading gives the same, as every user, and whatever the kernel forbids."""
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest

import harness
import models
from gpu import FakeDriver
from harness import finish
from manifest import block_hashes
from users import user_prefix

BUILD = Path(os.environ.get("IPC_CACHE_BUILD", Path(__file__).resolve().parents[2] / "build")).resolve()
USER = 1000
WAYS = ("auto", "direct", "buffered", "mmap")


def write_model(folder, megabytes=24):
    """Sizes that no block, page or sector divides, and some larger than a block."""
    tensors = {f"t{i}": ("U8", (size,), models.noise(size, i))
               for i, size in enumerate([1, 4095, 3_000_001, 9_500_000, 777, 4 << 20, 0, (megabytes << 20) - 17_000_000])}
    os.makedirs(folder, exist_ok=True)
    models.write_file(folder / "model.safetensors", tensors)
    return tensors


@pytest.fixture
def model(folder):
    tensors = write_model(folder / "model")
    return folder / "model", tensors


def evict(path):
    fd = os.open(path, os.O_RDONLY)
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def load(cli, path, *args, name="loaded", **options):
    """The JSON of a successful load, replacing what was there."""
    return cli("load", path, "--name", name, "--replace", "--json", *args, expect=0, **options).json


def check(broker, tensors, name="loaded"):
    """What is resident is what the file holds, and its hashes are right."""
    with broker.connect() as client, client.attach(name) as attached:
        found = {t.name: t for t in attached.manifest.tensors}
        assert found.keys() == tensors.keys()
        for tensor, (_, shape, content) in tensors.items():
            assert tuple(found[tensor].shape) == tuple(shape)
            assert bytes(attached.tensor_bytes(found[tensor])) == content, tensor
        for number in range(len(attached.maps)):
            assert attached.manifest.blocks(number) == block_hashes(attached.maps[number])


def total(document):
    return sum(document["io"]["paths"].values())


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_reading_gives_the_files_bytes(broker, cli, model, way, cold):
    broker.leaves_models = True
    path, tensors = model
    size = os.path.getsize(path / "model.safetensors")
    if cold:
        evict(path / "model.safetensors")
    document = load(cli, path, "--io", way)
    check(broker, tensors)
    assert total(document) == document["io"]["bytes_read"] == size
    assert document["io"]["buffer_bytes"] <= 256 << 20
    if way == "mmap" or (way == "auto" and not cold):
        assert document["io"]["paths"]["mapped"] == size
    if way == "buffered":
        assert document["io"]["paths"]["buffered"] == size


def test_an_ordinary_user_reads_roots_files_the_same_ways(other_users, binaries, folder, model):
    path, _ = model
    home = folder / "home"
    home.mkdir()
    os.chown(home, USER, USER)
    broker = harness.Broker(binaries, str(home / "broker"), prefix=tuple(user_prefix(USER)))
    broker.start()
    try:
        for way in WAYS:
            evict(path / "model.safetensors")
            document = load(broker.cli, path, "--io", way, prefix=user_prefix(USER))
            assert total(document) == document["io"]["bytes_read"] and document["io"]["refused_bytes"] == 0
        subprocess.run(["cat", path / "model.safetensors"], stdout=subprocess.DEVNULL, check=True)
        document = load(broker.cli, path, prefix=user_prefix(USER))
        assert document["io"]["paths"]["mapped"] == document["io"]["bytes_read"], "found in the page cache by a sample"
        assert "intact" in broker.cli("verify", "loaded", prefix=user_prefix(USER), expect=0).text
    finally:
        broker.kill()


# ---- what the kernel forbids ----

NO_RING = """
import ctypes, os, struct, sys
# seccomp: io_uring_setup gives EPERM, all else is allowed
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *c) for c in code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
head = struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(program))
assert libc.prctl(22, 2, head, 0, 0) == 0, ctypes.get_errno()
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_without_io_uring_threads_read_and_it_is_said_once(broker, cli, model):
    broker.leaves_models = True
    path, tensors = model
    evict(path / "model.safetensors")
    prefix = [sys.executable, "-c", NO_RING]
    document = load(cli, path, "--io", "direct", prefix=prefix)
    check(broker, tensors)
    assert document["io"]["reader"] == "threads"
    assert document["io"]["io_uring_error"] == "Operation not permitted"
    evict(path / "model.safetensors")
    said = cli("load", path, "--name", "loaded", "--replace", "--io", "direct", prefix=prefix, expect=0).text
    assert said.count("io_uring cannot be used here: Operation not permitted") == 1


def test_buffers_are_registered_where_that_is_permitted_and_not_needed_where_it_is_not(root, broker, cli, model):
    broker.leaves_models = True
    path, tensors = model
    evict(path / "model.safetensors")
    document = load(cli, path, "--io", "direct")
    if document["io"]["reader"] == "threads":
        pytest.skip("io_uring cannot be used here")
    # Without CAP_IPC_LOCK the limit on locked memory counts.
    evict(path / "model.safetensors")
    limited = load(cli, path, "--io", "direct",
                   prefix=["setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock", "prlimit", "--memlock=65536"])
    assert limited["io"]["reader"] == "io_uring"
    check(broker, tensors)


# ---- memory ----

def test_the_loaders_own_memory_is_bounded(broker, cli, folder, not_sanitized):
    broker.leaves_models = True
    os.makedirs(folder / "big")
    models.write_sparse(folder / "big" / "model.safetensors", 400 << 20)
    for way in WAYS:
        document = load(cli, folder / "big", "--io", way, "--threads", "32")
        assert document["io"]["peak_rss_bytes"] <= 256 << 20, way
        assert document["io"]["buffer_bytes"] <= 256 << 20, way


# ---- plans and selections ----

def matrix(rows, columns, seed):
    content = models.noise(rows * columns * 2, seed)
    return ("BF16", (rows, columns), content), numpy.frombuffer(content, "<u2").reshape(rows, columns)


@pytest.fixture
def layers(folder):
    tensors, arrays = {}, {}
    for i in range(3):
        for part, shape in {"q_proj": (64, 96), "o_proj": (96, 64)}.items():
            tensors[f"l.{i}.{part}.weight"], arrays[f"l.{i}.{part}.weight"] = matrix(*shape, seed=i)
        tensors[f"l.{i}.norm.weight"], arrays[f"l.{i}.norm.weight"] = matrix(1, 96, seed=i)
    os.makedirs(folder / "layers")
    models.write_file(folder / "layers" / "model.safetensors", tensors)
    return folder / "layers", tensors, arrays


def test_a_plan_is_shown_and_nothing_is_loaded(broker, cli, layers):
    path, tensors, _ = layers
    plan = cli("load", path, "--plan", "--json", expect=0).json
    assert {t["name"] for t in plan["tensors"]} == tensors.keys()
    assert plan["read_bytes"] == plan["tensor_bytes"] == sum(len(c) for _, _, c in tensors.values())
    assert all(t["offset"] % 256 == 0 for t in plan["tensors"])
    ends = [r["file_offset"] for r in plan["reads"]]
    assert ends == sorted(ends)
    assert "9 of 9" in cli("load", path, "--plan", expect=0).text
    assert broker.models() == []


def test_patterns_choose_tensors_and_only_those_bytes_are_read(broker, cli, layers):
    broker.leaves_models = True
    path, tensors, _ = layers
    wanted = {k: v for k, v in tensors.items() if ".1." in k and "norm" not in k}
    document = load(cli, path, "--include", "l.1.*", "--exclude", "*norm*")
    check(broker, wanted)
    assert document["io"]["bytes_read"] == sum(len(c) for _, _, c in wanted.values())
    # It is not the whole model, and the whole model is not it.
    cli("load", path, "--name", "all", expect=0)
    check(broker, tensors, "all")
    assert len(broker.models()) == 2


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_get_their_rows_and_columns(broker, cli, layers, ranks):
    broker.leaves_models = True
    path, tensors, arrays = layers
    for rank in range(ranks):
        args = ["--rank", f"{rank}/{ranks}", "--rows", "*.q_proj.*", "--columns", "*.o_proj.*"]
        cli("load", path, *args, expect=0)
        expected = {}
        for name, array in arrays.items():
            part = array
            if "q_proj" in name:
                part = numpy.split(array, ranks, 0)[rank]
            if "o_proj" in name:
                part = numpy.split(array, ranks, 1)[rank]
            expected[name] = ("BF16", part.shape, numpy.ascontiguousarray(part).tobytes())
        check(broker, expected, f"layers-rank-{rank}-of-{ranks}")
        again = cli("load", path, *args, "--json", expect=0).json
        assert again["already_resident"]
    assert len(broker.models()) == ranks and tensors


@pytest.mark.parametrize("args, words", [
    (["--rank", "0/5", "--rows", "*q_proj*"], "its 64 rows cannot be shared by 5 ranks"),
    (["--rank", "0/2", "--rows", "*", "--columns", "*"], "a pattern of rows and one of columns"),
    (["--include", "nothing"], "none of its 9 tensors is selected"),
])
def test_selections_that_cannot_be_are_named(broker, cli, layers, args, words):
    result = cli("load", layers[0], *args)
    assert result.status in (3, 6) and words in result.err
    assert broker.is_empty()


@pytest.mark.parametrize("args", [["--rank", "2/2"], ["--rank", "x"], ["--rank", "1/0"], ["--rows", "*"], ["--io", "fast"]])
def test_senseless_options_are_usage_errors(cli, layers, args):
    assert cli("load", layers[0], *args).status == 2


# ---- a file system with faults ----

@pytest.fixture
def mounted(root, folder):
    """mounted(fault, "NAME:OFFSET"): the model's folder, shown by the tests' own FUSE file system."""
    program = BUILD / "tests" / "faultfs"
    if not program.exists() or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs /dev/fuse and the tests' file system (make test-system builds it)")
    mounts = []

    def mount(source, fault, *where):
        point = folder / f"mnt-{len(mounts)}"
        point.mkdir()
        process = subprocess.Popen([program, source, point, fault, *where], stderr=subprocess.DEVNULL)
        mounts.append((process, point))
        end = time.monotonic() + 20
        while not os.path.ismount(point):
            assert process.poll() is None and time.monotonic() < end, "the file system is not mounted"
            time.sleep(0.01)
        return point

    yield mount
    for process, point in mounts:
        subprocess.run(["fusermount3", "-u", "-z", point], check=False)
        process.wait(20)


def write_shards(folder):
    """Eight shards of 6 MiB."""
    os.makedirs(folder)
    tensors, places = {}, {}
    for i in range(8):
        name = f"model-{i + 1:05}-of-00008.safetensors"
        tensors[f"t{i}"] = ("U8", (6 << 20,), models.noise(6 << 20, i))
        models.write_file(folder / name, {f"t{i}": tensors[f"t{i}"]})
        places[f"t{i}"] = name
    with open(folder / "model.safetensors.index.json", "w", encoding="ascii") as file:
        json.dump({"metadata": {}, "weight_map": places}, file)
    return tensors


@pytest.fixture(params=["host", "gpu"])
def target(request, folder, binaries):
    """The options and the prefix of a load onto that device; nothing is left in it or pinned for it at the end."""
    if request.param == "host":
        yield (), ()
        return
    fake = FakeDriver(folder)
    yield ("--device", "cuda:0"), fake.prefix()
    harness.wait_until(lambda: fake.used() == 0, "the memory to be free")
    assert fake.take("leaks") == ""


SEVENTH = "model-00007-of-00008.safetensors"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", ["none", "short", "nodirect"])
def test_file_systems_with_habits_give_the_same_bytes(broker, cli, folder, mounted, fault, way):
    broker.leaves_models = True
    tensors = write_shards(folder / "shards")
    document = load(cli, mounted(folder / "shards", fault), "--io", way)
    check(broker, tensors)
    if fault == "nodirect" and way == "direct":
        assert document["io"]["refused_bytes"] == document["io"]["bytes_read"] == document["io"]["paths"]["buffered"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault, words", [
    ("eio", "Input/output error"),
    ("truncate", "changed while being read"),
    ("touch", "changed while being read: its modification time"),
    ("replace", "changed while being read: its inode"),
])
def test_a_disk_that_dies_in_shard_seven_is_named_and_nothing_is_left(broker, cli, folder, mounted, target, fault, words, way):
    write_shards(folder / "shards")
    point = mounted(folder / "shards", fault, f"{SEVENTH}:{5 << 20}")
    options, prefix = target
    result = cli("load", point, "--io", way, *options, prefix=prefix)
    assert result.status in (1, 5), result
    assert SEVENTH in result.err and words in result.err
    if fault == "eio":
        assert re.search(r"at offset \d+", result.err)
    assert broker.becomes_empty()


@pytest.mark.parametrize("way", ("direct", "buffered"))
def test_an_interrupted_load_ends_soon_and_leaves_nothing(broker, cli, folder, mounted, target, way):
    write_shards(folder / "shards")
    point = mounted(folder / "shards", "slow")
    options, prefix = target
    with cli.running("load", point, "--io", way, *options, prefix=prefix) as process:
        while broker.is_empty():
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        result = finish(process, 20)
    assert result.status == 1 and "canceled" in result.err
    assert broker.becomes_empty()


def test_a_broker_that_dies_ends_the_load(start_broker, folder, mounted):
    broker = start_broker()
    write_shards(folder / "shards")
    point = mounted(folder / "shards", "slow")
    with broker.cli.running("load", point, "--io", "buffered") as process:
        while broker.is_empty():
            time.sleep(0.01)
        broker.kill()
        assert process.wait(20) == 7
    broker.process = None

