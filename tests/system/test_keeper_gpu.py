"""Keepers of GPU memory, on the fake driver: legacy handles over real processes, which die with the keeper."""
import contextlib
import json
import os
import signal
import subprocess

import pytest

import manifest
import models
from gpu import BUILD, FakeDriver, uuid
from harness import finish, wait_until
from protocol import KEPT

MIB = 1 << 20
ACTOR = BUILD / "tests" / "gpu" / "actor"


@pytest.fixture
def fake(folder, binaries):
    driver = FakeDriver(folder)
    yield driver
    assert driver.take("leaks") == ""


@contextlib.contextmanager
def keeping(broker, fake, path, *arguments, device="cuda:1", prefix=None):
    """`load --keeper`, resident; killed at the end if it has not ended."""
    before = broker.stat()["commits"]
    with broker.cli.running("load", path, "--device", device, "--keeper", *arguments, prefix=prefix or fake.prefix()) as keeper:
        wait_until(lambda: broker.stat()["commits"] > before or keeper.poll() is not None, "the keeper's commit")
        yield keeper


@pytest.fixture
def keeper(broker, small, fake):
    """The small checkpoint on the second GPU, as `small`, kept by a process; what it still has, when it is killed, is no leak."""
    with keeping(broker, fake, small, "--name", "small") as process:
        yield process
    broker.becomes_empty()
    wait_until(lambda: fake.used() == 0, "the memory to be free")


def said_by(process, line_count=1):
    return [json.loads(process.stdout.readline()) for _ in range(line_count)]


# ---- living ----

def test_a_kept_model_is_attached_verified_listed_and_freed(broker, small, fake, keeper):
    model = broker.models()[0]
    assert model["key"]["device"] == uuid(1) and model["bytes"] == fake.used() and model["publisher_pid"] == keeper.pid
    said = broker.cli("attach", small, "--json", "--repeat", "5", prefix=fake.prefix(), expect=0).json
    assert said["sources"] == "same"
    assert broker.cli("verify", "small", "--json", prefix=fake.prefix(), expect=0).json["damage"] == []
    listed = broker.cli("ls", "--json", expect=0).json["models"][0]
    assert listed["keeper_pid"] == keeper.pid and f"kept by {keeper.pid} ipc-cache" in broker.cli("ls", expect=0).text
    segment = broker.cli("dump", "small", "--json", expect=0).json["segments"][0]
    assert segment["handle"] == "legacy" and len(segment["handle_hex"]) == 128
    assert "legacy handle" in broker.cli("dump", "small", expect=0).text
    again = broker.cli("load", small, "--device", "cuda:1", "--json", prefix=fake.prefix(), expect=0).json
    assert again["already_resident"]
    broker.cli("evict", "small", expect=0)
    ended = finish(keeper)
    assert ended.status == 0 and "the model was evicted" in ended.text and "this process" in ended.text


def test_every_byte_arrives_through_several_handles(broker, fake):
    environment = {**os.environ, **{k: str(v) for k, v in fake.settings().items()}, "IPC_CACHE_DIR": broker.directory}
    with subprocess.Popen([ACTOR, "keep", "w", "cuda:0", "1", "5", str(4 * MIB)], env=environment, stdout=subprocess.PIPE,
                          text=True) as keeper:
        assert "published_ms" in said_by(keeper)[0]
        subprocess.run([ACTOR, "compare", "w", "1", "5", str(4 * MIB)], env=environment, check=True, stdout=subprocess.DEVNULL)
        other = subprocess.run([ACTOR, "compare", "w", "2", "5", str(4 * MIB)], env=environment, check=False,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert other.returncode != 0 and "has other bytes" in other.stderr
        fake.take("leaks")  # of the one that failed
        # What it does not do it says; and it holds the model, until it is evicted.
        with subprocess.Popen([ACTOR, "kept", "w", "5"], env=environment, stdout=subprocess.PIPE, text=True) as reader:
            assert said_by(reader)[0]["rounds"] == 5
            broker.cli("evict", "w", "--force", expect=0)
            assert said_by(reader)[0] == {"lease": "evicted"} and reader.wait() == 0
        assert said_by(keeper)[0] == {"released": True} and keeper.wait() == 0
    fake.take("leaks")  # the actors leave the context of their own
    assert broker.becomes_empty() and fake.used() == 0


@pytest.mark.parametrize("visible", ["1,0", "1", uuid(1), "0,1"])
def test_the_manifest_decides_the_gpu(broker, fake, keeper, visible):
    broker.cli("verify", "small", prefix=fake.prefix(CUDA_VISIBLE_DEVICES=visible), expect=0)


def test_a_gpu_that_the_reader_does_not_see_is_named(broker, fake, keeper):
    said = broker.cli("attach", "small", prefix=fake.prefix(CUDA_VISIBLE_DEVICES="0"), expect=3).err
    assert uuid(1) in said and uuid(0) in said and "CUDA_VISIBLE_DEVICES=0" in said
    assert broker.models()[0]["leases"] == 0


def test_eight_keepers_on_eight_gpus_reach_readers_with_any_order(broker, folder, fake):
    fake.gpus = 8
    with contextlib.ExitStack() as stack:
        for i in range(8):
            stack.enter_context(keeping(broker, fake, models.write_small(folder / f"shard{i}"), device=f"cuda:{i}"))
        for i in range(8):
            assert broker.cli("verify", f"shard{i}", "--json", expect=0, prefix=fake.prefix(
                CUDA_VISIBLE_DEVICES="5,3,7,1,0,2,4,6")).json["damage"] == []
    assert broker.becomes_empty()


def test_a_kept_model_is_copied_to_another_gpu_and_to_the_host(broker, fake, keeper):
    broker.leaves_models = True
    for device in "cuda:0", "host":
        broker.cli("copy", "small", "--from", "cuda:1", "--device", device, prefix=fake.prefix(), expect=0)
    keeper.kill()
    wait_until(lambda: len(broker.models()) == 2, "the kept one to go")
    for device in "cuda:0", "host":
        assert broker.cli("verify", "small", "--device", device, "--json", prefix=fake.prefix(), expect=0).json["damage"] == []
    broker.evict_all()


# ---- ends ----

def test_a_keepers_kill_ends_the_model_and_its_holders_let_go(broker, fake, keeper):
    with broker.cli.holding("small", prefix=fake.prefix()) as holder:
        keeper.kill()
        keeper.wait()
        said = broker.cli("attach", "small", prefix=fake.prefix(), expect=3).err
        assert f"its keeper, process {keeper.pid}, has ended" in said
        ended = finish(holder)
        assert ended.status == 3 and "keeper has ended" in ended.err
    assert broker.becomes_empty()
    wait_until(lambda: fake.used() == 0, "the memory to be free")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_model_before_its_memory_is_freed(broker, small, fake, keeper, number):
    keeper.send_signal(number)
    ended = finish(keeper)
    assert ended.status == 0 and "by a signal" in ended.text
    assert fake.used() == 0 and broker.models() == []
    assert f"its keeper, process {keeper.pid}, has ended" in broker.cli("attach", small, prefix=fake.prefix(), expect=3).err


def test_the_brokers_end_frees_the_memory(start_broker, small, fake):
    broker = start_broker()
    with keeping(broker, fake, small, "--name", "small") as keeper:
        with broker.cli.holding("small", prefix=fake.prefix()) as holder:
            broker.signal(signal.SIGTERM)
            ended = finish(keeper)
            assert ended.status == 7 and "with it the model" in ended.err
            assert finish(holder).status == 3
    broker.process.wait()
    broker.process = None
    assert fake.used() == 0


def test_draining_waits_for_the_holder_and_the_keeper_for_both(broker, fake, keeper):
    with broker.cli.holding("small", prefix=fake.prefix()) as holder:
        refused = broker.cli("evict", "small", expect=6)
        assert f"leased by process {holder.pid}" in refused.err
        broker.cli("evict", "small", "--drain", expect=0)
        assert keeper.poll() is None and fake.used() > 0
        holder.stdin.close()
        assert finish(holder).status == 0
    assert finish(keeper).status == 0


def test_a_replacement_takes_over_and_the_old_keeper_goes(broker, small, fake, keeper):
    models.write_small(small, seed=7)
    with keeping(broker, fake, small, "--name", "small", "--replace") as second:
        assert finish(keeper).status == 0
        assert broker.cli("verify", "small", "--json", prefix=fake.prefix(), expect=0).json["damage"] == []
        broker.cli("evict", "small", expect=0)
        assert finish(second).status == 0


def test_a_keeper_says_in_json_that_it_is_one(broker, small, fake):
    with keeping(broker, fake, small, "--json") as keeper:
        document, line = b"", None
        while line != b"}\n":
            line = keeper.stdout.readline()
            document += line
        assert json.loads(document)["keeper_pid"] == keeper.pid
        broker.cli("evict", small, expect=0)
        assert finish(keeper).out == b""


# ---- devices and memory that are not as they say ----

def test_what_cannot_be_exported_is_refused_by_load_and_kept_if_told(broker, small, fake):
    prefix = fake.prefix(FAKE_CUDA_NO_FDS=1)
    said = broker.cli("load", small, "--device", "cuda:0", prefix=prefix, expect=6).err
    assert "cannot be shared as file descriptors" in said and "ipc-cache load --keeper" in said
    assert "--keeper" in broker.cli("doctor", prefix=prefix).text
    assert "as fds and by legacy IPC" in broker.cli("doctor", prefix=fake.prefix()).text
    with keeping(broker, fake, small, "--name", "small", prefix=prefix) as keeper:
        broker.cli("verify", "small", prefix=prefix, expect=0)
        broker.cli("evict", "small", expect=0)
        assert finish(keeper).status == 0
    assert "needs no keeper" in broker.cli("load", small, "--keeper", prefix=prefix, expect=6).err
    assert broker.is_empty()


def test_too_little_memory_is_found_before_anything_is_allocated(broker, small, fake):
    fake.memory = 0
    said = broker.cli("load", small, "--device", "cuda", "--keeper", prefix=fake.prefix(), expect=1).err
    assert "are free" in said and uuid(0) in said


@pytest.mark.parametrize("what, says, status", [
    ("a larger one", "has 2097152 bytes, its manifest says 4194304", 5),
    ("another vendor's", "a handle of 128 bytes; those of", 5),
    ("nobody's", "has its keeper ended?", 1),
])
def test_a_handle_that_is_not_what_its_manifest_says_maps_nothing(broker, fake, keeper, what, says, status):
    with broker.connect() as reader, reader.attach("small") as attached:
        handle = attached.handles[0]
    size = 2 * MIB
    if what == "a larger one":
        size = 4 * MIB
    elif what == "another vendor's":
        handle = handle.ljust(128, b"\1")
    elif what == "nobody's":
        handle = bytes(64)
    with broker.connect() as liar:
        key = {"model": "/lie", "device": uuid(1)}
        liar.begin(key, [size], name="lie", flags=KEPT)
        liar.draft(manifest.Draft(key, "lie").segment(size, device=uuid(1), handle_kind=2, handle=handle).build())
        liar.commit()
        said = broker.cli("attach", "lie", prefix=fake.prefix(), expect=status).err
        assert says in said
        assert fake.take("leaks") == ""


# ---- every error of every function ----

KEEPING = ["cuInit", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuMemGetInfo_v2", "cuMemAlloc_v2", "cuIpcGetMemHandle",
           "cuMemsetD8Async", "cuMemcpyHtoDAsync_v2", "cuStreamCreate", "cuStreamSynchronize", "cuMemHostAlloc", "cuMemFree_v2"]
READING = ["cuInit", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuIpcOpenMemHandle_v2",
           "cuMemGetAddressRange_v2", "cuStreamCreate", "cuMemHostAlloc", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"]
MOST = 80


def every_call(fake, function, code, once):
    for number in range(1, MOST):
        fake.take("reached")
        once(fake.prefix(FAKE_CUDA_FAIL=f"{function}:{number}:{code}", ASAN_OPTIONS="detect_leaks=0"))
        if not fake.take("reached"):
            return number - 1
    return MOST


@pytest.mark.parametrize("code", [2, 999])
@pytest.mark.parametrize("function", KEEPING)
def test_a_keeper_in_which_a_call_fails_leaves_nothing(broker, small, fake, function, code):
    def once(prefix):
        with keeping(broker, fake, small, "--name", "small", prefix=prefix) as keeper:
            if keeper.poll() is None:
                broker.cli("verify", "small", prefix=fake.prefix(), expect=0)
                broker.cli("evict", "small", expect=0)
            ended = finish(keeper)
            assert ended.status == 0 or ended.err.startswith("ipc-cache load: "), ended
        broker.becomes_empty()
        assert fake.used() == 0
        leaks = fake.take("leaks")
        assert leaks == "" or function == "cuMemFree_v2"  # which failed to let go

    assert every_call(fake, function, code, once) > 0, f"{function} is not called"


@pytest.mark.parametrize("code", [1, 400, 700])
@pytest.mark.parametrize("function", READING)
def test_a_reader_of_a_kept_model_in_which_a_call_fails_holds_nothing(broker, fake, keeper, function, code):
    def once(prefix):
        result = broker.cli("verify", "small", prefix=prefix)
        assert result.status in (0, 1, 3), result
        assert fake.take("leaks") == "" and broker.models()[0]["leases"] == 0

    assert every_call(fake, function, code, once) > 0, f"{function} is not called"
    broker.cli("verify", "small", prefix=fake.prefix(), expect=0)


def test_a_reader_that_cannot_close_a_handle_ends_all_the_same(broker, fake, keeper):
    def once(prefix):
        broker.cli("verify", "small", prefix=prefix, expect=0)
        fake.take("leaks")

    assert every_call(fake, "cuIpcCloseMemHandle", 999, once) == 1


# ---- other vendors, on stubs ----

@pytest.mark.parametrize("kind, settings, length", [("hip", {}, 64), ("maca", {"MACA_MPS_MODE": 1}, 128),
                                                    ("maca", {"MACA_MPS_MODE": 1, "FAKE_MACA_NO_LAZY": 1}, 128)])
def test_other_vendors_keepers_do_the_same_on_their_stubs(broker, small, fake, kind, settings, length):
    """MACA's close would hang: that this ends shows that it is never called."""
    prefix = fake.prefix(LD_LIBRARY_PATH=BUILD / "tests" / f"fake-{kind}", **settings)
    with keeping(broker, fake, small, "--name", "small", device=f"{kind}:1", prefix=prefix) as keeper:
        assert broker.cli("verify", "small", "--json", prefix=prefix, expect=0).json["damage"] == []
        with broker.connect() as reader, reader.attach("small") as attached:
            assert [len(handle) for handle in attached.handles] == [length]
        broker.cli("evict", "small", expect=0)
        assert finish(keeper).status == 0
    assert broker.becomes_empty() and fake.used() == 0
