"""Models on GPUs, on the fake driver: real processes, real fds. What the driver itself does is tests/gpu/conformance's."""
import os
import pathlib
import signal
import subprocess

import harness
import models
import pytest
from gpu import BUILD, FakeDriver, uuid
from protocol import Failure, closing, memfd, seal, sealed

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIB = 1 << 20


@pytest.fixture
def fake(folder, binaries):
    driver = FakeDriver(folder)
    yield driver
    assert driver.take("leaks") == ""


@pytest.fixture
def gpu_model(broker, small, fake):
    """The small checkpoint on the second GPU, as `small`."""
    broker.leaves_models = True
    broker.cli("load", small, "--name", "small", "--device", "cuda:1", prefix=fake.prefix(), expect=0)
    return small


@pytest.fixture
def mixed(folder):
    """Tensors that are sent from pinned buffers, and small ones that are gathered."""
    os.makedirs(folder / "mixed")
    models.write_file(folder / "mixed" / "model.safetensors", {
        "a": ("U8", (5 * MIB + 3,), models.noise(5 * MIB + 3)), "b": ("U8", (7,), models.noise(7)),
        "c": ("U8", (300_000,), models.noise(300_000, 1)), "d": ("F32", (64, 32), models.noise(8192, 2))})
    return folder / "mixed"


def test_conformance_holds_on_the_fake(fake):
    done = subprocess.run([BUILD / "tests" / "gpu" / "conformance"], env={**os.environ, **{k: str(v) for k, v in fake.settings(
        FAKE_CUDA_LEAKS="/dev/null", FAKE_CUDA_MEMORY=256 * MIB).items()}}, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0 and "FAIL" not in done.stdout, done.stdout


def test_the_run_for_real_cards_passes_on_the_fake(folder, not_sanitized):
    done = subprocess.run([ROOT / "tests" / "gpu" / "run", folder / "report", "--fake", "--build", BUILD, "--rounds", "40"],
                          stdout=subprocess.PIPE, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout


def test_a_model_on_a_gpu_is_loaded_attached_verified_and_gone(broker, gpu_model, fake):
    model = broker.models()[0]
    assert model["key"]["device"] == uuid(1) and model["bytes"] == fake.used() and model["bytes"] % (2 * MIB) == 0
    said = broker.cli("attach", gpu_model, "--json", "--repeat", "5", prefix=fake.prefix(), expect=0).json
    assert said["sources"] == "same"
    assert broker.cli("verify", "small", "--json", prefix=fake.prefix(), expect=0).json["damage"] == []
    again = broker.cli("load", gpu_model, "--device", "GPU-fa4e0c0d-0001-4000-8000-000000000002", "--json",
                       prefix=fake.prefix(), expect=0).json
    assert again["already_resident"]
    broker.cli("evict", "small", expect=0)  # no driver is needed for that
    harness.wait_until(lambda: fake.used() == 0, "the memory to be free")


@pytest.mark.parametrize("visible", ["1,0", "1", uuid(1), "0,1"])
def test_the_manifest_decides_the_gpu_whatever_its_number_here(broker, gpu_model, fake, visible):
    for verb in "attach", "verify":
        broker.cli(verb, "small", prefix=fake.prefix(CUDA_VISIBLE_DEVICES=visible), expect=0)


def test_a_gpu_that_the_process_does_not_see_is_named_with_those_that_it_sees(broker, gpu_model, fake):
    said = broker.cli("attach", "small", prefix=fake.prefix(CUDA_VISIBLE_DEVICES="0"), expect=3).err
    assert uuid(1) in said and uuid(0) in said and "CUDA_VISIBLE_DEVICES=0" in said
    said = broker.cli("attach", "small", prefix=fake.prefix(CUDA_VISIBLE_DEVICES=""), expect=3).err
    assert uuid(1) in said and "sees no GPU" in said
    said = broker.cli("attach", "small", expect=3).err
    assert uuid(1) in said and "libcuda.so.1" in said
    assert broker.models()[0]["leases"] == 0


def test_eight_shards_on_eight_gpus_reach_readers_with_any_order(broker, folder, fake):
    fake.gpus = 8
    broker.leaves_models = True
    for i in range(8):
        path = models.write_small(folder / f"shard{i}")
        broker.cli("load", path, "--device", f"cuda:{i}", prefix=fake.prefix(), expect=0)
    order = "5,3,7,1,0,2,4,6"
    for i in range(8):
        assert broker.cli("verify", f"shard{i}", "--device", uuid(i), "--json", expect=0,
                          prefix=fake.prefix(CUDA_VISIBLE_DEVICES=order)).json["damage"] == []


def test_devices_are_named_in_every_way_and_the_wrong_ones_are_listed(broker, small, fake):
    broker.leaves_models = True
    for text, number in ("cuda", 0), ("cuda:1", 1), (uuid(1), 1), ("gpu-FA4E0C0D-0001-4000-8000-000000000001", 0):
        broker.cli("load", small, "--device", text, "--replace", prefix=fake.prefix(), expect=0)
        assert uuid(number) in {m["key"]["device"] for m in broker.models()}
    said = broker.cli("load", small, "--device", "cuda:2", prefix=fake.prefix(), expect=3).err
    assert "cuda:0" in said and uuid(1) in said
    assert "may be" in broker.cli("load", small, "--device", "GPU-fa4e0c", prefix=fake.prefix(), expect=2).err
    broker.cli("load", small, "--device", "auto", expect=0)  # no driver: the host
    assert "host" in {m["key"]["device"] for m in broker.models()}
    old = broker.cli("load", small, "--device", "cuda", prefix=fake.prefix(FAKE_CUDA_VERSION=11000), expect=3).err
    assert "too old" in old and "11.4 is needed" in old


def test_copies_go_between_gpus_and_to_the_host(broker, gpu_model, fake):
    for to, extra in (uuid(0), {}), ("host", {}):
        broker.cli("copy", "small", "--from", "cuda:1", "--device", to, prefix=fake.prefix(**extra), expect=0)
    broker.cli("copy", "small", "--from", "cuda:1", "--device", "cuda:0", "--replace",
               prefix=fake.prefix(FAKE_CUDA_NO_PEERS=1), expect=0)
    broker.cli("copy", "small", "--from", "host", "--device", "cuda:0", "--replace", prefix=fake.prefix(), expect=0)
    for device in "host", "cuda:0", "cuda:1":
        assert broker.cli("verify", "small", "--device", device, "--json", prefix=fake.prefix(), expect=0).json["damage"] == []
    keys = [m["key"] for m in broker.models()]
    assert len(keys) == 3 and len({k["model"] for k in keys}) == 1
    assert "already" in broker.cli("copy", "small", "--from", "cuda:1", "--device", "cuda:1", prefix=fake.prefix(), expect=6).err


def test_too_little_memory_is_found_before_anything_is_allocated(broker, small, fake):
    fake.memory = 0
    said = broker.cli("load", small, "--device", "cuda", prefix=fake.prefix(), expect=1).err
    assert "are free" in said and uuid(0) in said
    assert broker.is_empty() and fake.used() == 0


def test_a_model_outlives_its_publishers_kill_and_its_readers(broker, fake):
    broker.leaves_models = True
    environment = {**os.environ, **{k: str(v) for k, v in fake.settings().items()}, "IPC_CACHE_DIR": broker.directory}
    actor = BUILD / "tests" / "gpu" / "actor"
    with subprocess.Popen([actor, "publish", "w", "cuda:0", "1", "3", str(4 * MIB), "wait"], env=environment,
                          stdout=subprocess.PIPE, text=True) as publisher:
        assert "published" in publisher.stdout.readline()
        publisher.send_signal(signal.SIGKILL)
    subprocess.run([actor, "compare", "w", "1", "3", str(4 * MIB)], env=environment, check=True, stdout=subprocess.DEVNULL)
    # It dies with all that it has.
    offender = {**environment, "FAKE_CUDA_LEAKS": "/dev/null", "ASAN_OPTIONS": "detect_leaks=0"}
    subprocess.run([actor, "offend", "w"], env=offender, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([actor, "compare", "w", "1", "3", str(4 * MIB)], env=environment, check=True, stdout=subprocess.DEVNULL)
    other = subprocess.run([actor, "compare", "w", "2", "3", str(4 * MIB)], env=environment, check=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert other.returncode != 0, "the comparison finds other bytes equal"


# ---- every error of every function ----

FUNCTIONS = ["cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid_v2",
             "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuMemGetInfo_v2", "cuMemGetAllocationGranularity",
             "cuMemCreate", "cuMemExportToShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
             "cuMemsetD8Async", "cuMemcpyHtoDAsync_v2", "cuStreamCreate", "cuStreamSynchronize",
             "cuMemHostAlloc", "cuMemHostRegister_v2"]
# Failing to let go is no failure of what was asked for, and leaves what could not be let go.
RELEASING = ["cuMemRelease", "cuMemUnmap", "cuMemAddressFree", "cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRelease_v2",
             "cuStreamDestroy_v2", "cuMemFreeHost", "cuMemHostUnregister"]
READING = ["cuInit", "cuDeviceGetCount", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuMemGetAllocationGranularity",
           "cuMemImportFromShareableHandle", "cuMemGetAllocationPropertiesFromHandle", "cuMemAddressReserve", "cuMemMap",
           "cuMemSetAccess", "cuStreamCreate", "cuMemHostAlloc", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"]
MOST = 80


def every_call(fake, function, code, once):
    """Calls once(prefix) with the 1st, 2nd, ... call of the function failing until none is reached; how often it was."""
    for number in range(1, MOST):
        fake.take("reached")
        once(fake.prefix(FAKE_CUDA_FAIL=f"{function}:{number}:{code}"))
        if not fake.take("reached"):
            return number - 1
    return MOST



@pytest.mark.parametrize("code", [1, 2, 999])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_load_in_which_a_call_of_the_driver_fails_leaves_nothing(broker, mixed, fake, function, code):
    def once(prefix):
        result = broker.cli("load", mixed, "--name", "small", "--device", "cuda:1", prefix=prefix)
        if result.status == 0:
            broker.cli("verify", "small", prefix=fake.prefix(), expect=0)
            broker.cli("evict", "small", expect=0)
        else:
            assert result.status in (1, 3, 6) and result.err.startswith("ipc-cache load: "), result
        broker.becomes_empty()
        harness.wait_until(lambda: fake.used() == 0, "the memory to be free")
        assert fake.take("leaks") == ""

    assert every_call(fake, function, code, once) > 0, f"{function} is not called"


@pytest.mark.parametrize("function", RELEASING)
def test_a_load_in_which_letting_go_fails_never_gives_wrong_bytes(broker, mixed, fake, function):
    def once(prefix):
        result = broker.cli("load", mixed, "--name", "small", "--device", "cuda:1", prefix=[*prefix, "ASAN_OPTIONS=detect_leaks=0"])
        if result.status == 0:
            broker.cli("verify", "small", prefix=fake.prefix(), expect=0)
            broker.cli("evict", "small", expect=0)
        broker.becomes_empty()
        harness.wait_until(lambda: fake.used() == 0, "the memory to be free")
        fake.take("leaks")

    assert every_call(fake, function, 999, once) > 0, f"{function} is not called"


@pytest.mark.parametrize("code", [2, 700])
@pytest.mark.parametrize("function", READING)
def test_a_reader_in_which_a_call_fails_says_so_and_holds_nothing(broker, gpu_model, fake, function, code):
    def once(prefix):
        result = broker.cli("verify", "small", prefix=prefix)
        assert result.status in (0, 1, 3, 6), result
        assert fake.take("leaks") == "" and broker.models()[0]["leases"] == 0

    assert every_call(fake, function, code, once) > 0, f"{function} is not called"
    broker.cli("verify", "small", prefix=fake.prefix(), expect=0)


@pytest.mark.parametrize("function", ["cuDeviceCanAccessPeer", "cuMemcpyDtoDAsync_v2", "cuStreamCreate", "cuStreamSynchronize",
                                      "cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess", "cuMemCreate"])
def test_a_copy_in_which_a_call_fails_leaves_the_model_alone(broker, gpu_model, fake, function):
    used = fake.used()

    def once(prefix):
        result = broker.cli("copy", "small", "--device", "cuda:0", prefix=prefix)
        if result.status == 0:
            broker.cli("verify", "small", "--device", "cuda:0", prefix=fake.prefix(), expect=0)
            broker.cli("evict", "small", "--device", uuid(0), expect=0)
        harness.wait_until(lambda: fake.used() == used, "the copy's memory to be free")
        assert fake.take("leaks") == "" and len(broker.models()) == 1

    assert every_call(fake, function, 2, once) > 0, f"{function} is not called"


@pytest.mark.parametrize("function", ["cuMemCreate", "cuMemExportToShareableHandle", "cuMemAddressReserve", "cuMemMap",
                                      "cuMemSetAccess", "cuMemsetD8Async"])
def test_running_out_half_way_through_several_segments_frees_them_all(broker, fake, function):
    def once(prefix):
        result = subprocess.run([*prefix, f"IPC_CACHE_DIR={broker.directory}", BUILD / "tests" / "gpu" / "actor", "publish",
                                 "w", "cuda:0", "1", "5", str(2 * MIB)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, check=False)
        if result.returncode == 0:
            broker.cli("evict", "w", expect=0)
        else:
            assert "OUT_OF_MEMORY" in result.stderr or "bytes left for a segment" in result.stderr
        broker.becomes_empty()
        harness.wait_until(lambda: fake.used() == 0, "the memory to be free")
        fake.take("leaks")  # the actor ends in the middle

    assert every_call(fake, function, 2, once) == 5


# ---- what is sent without a copy ----

@pytest.mark.parametrize("way", ["auto", "direct", "buffered", "mmap"])
@pytest.mark.parametrize("register", ["works", "fails", "fails once"])
def test_buffers_are_pinned_or_it_is_said_why_not(broker, mixed, fake, way, register):
    failure = {"works": "", "fails": "cuMemHostRegister_v2:0:801", "fails once": "cuMemHostRegister_v2:2:2"}[register]
    prefix = fake.prefix(FAKE_CUDA_FAIL=failure)
    io = broker.cli("load", mixed, "--name", "m", "--device", "cuda:0", "--io", way, "--threads", "2", "--json", prefix=prefix,
                    expect=0).json["io"]
    if register == "works":
        assert io["unpinned"] is None
    elif register == "fails":
        assert "cannot be pinned: CUDA_ERROR_NOT_SUPPORTED" in io["unpinned"]
    assert io["buffer_bytes"] <= 140 * MIB and io["fill_seconds"] > 0
    assert broker.cli("verify", "m", "--json", prefix=fake.prefix(), expect=0).json["damage"] == []
    broker.cli("evict", "m", expect=0)


def test_a_thousand_small_files_reach_a_gpu(broker, folder, fake):
    models.write_sharded(folder / "sharded", 1000)
    broker.cli("load", folder / "sharded", "--name", "m", "--device", "cuda:0", prefix=fake.prefix(), expect=0)
    assert broker.cli("verify", "m", "--json", prefix=fake.prefix(), expect=0).json["damage"] == []
    broker.cli("evict", "m", expect=0)


# ---- other vendors, on stubs ----

@pytest.mark.parametrize("kind, settings", [("hip", {"FAKE_HIP_VERSION": 60300000}), ("hip", {"FAKE_HIP_VERSION": 70200000}),
                                            ("maca", {"MACA_MPS_MODE": 1})])
def test_other_vendors_gpus_do_the_same_on_their_stubs(broker, small, fake, kind, settings):
    broker.leaves_models = True
    prefix = fake.prefix(LD_LIBRARY_PATH=BUILD / "tests" / f"fake-{kind}", **settings)
    broker.cli("load", small, "--name", "small", "--device", f"{kind}:1", prefix=prefix, expect=0)
    assert broker.models()[0]["key"]["device"] == f"{kind.upper()}-0000:02:00.0"
    broker.cli("copy", "small", "--device", f"{kind}:0", prefix=prefix, expect=0)
    for number in 0, 1:
        said = broker.cli("verify", "small", "--device", f"{kind}:{number}", "--json", prefix=prefix, expect=0).json
        assert said["damage"] == []


def test_a_maca_process_that_would_hang_is_told_what_to_set(broker, small, fake):
    prefix = fake.prefix(LD_LIBRARY_PATH=BUILD / "tests" / "fake-maca")
    said = broker.cli("load", small, "--device", "maca:0", prefix=prefix, expect=3).err
    assert "MACA_MPS_MODE=1" in said


# ---- what the broker takes as a GPU's segment ----

KEY = {"model": "/m", "device": uuid(0)}


def hand_over(broker, fd, size, key=None):
    with broker.connect() as client:
        client.begin(key or KEY, [size])
        client.segments([fd])


def test_the_broker_takes_what_may_be_a_gpus_memory_and_nothing_else(broker):
    for path in "/dev/null", "/dev/zero", "/dev/ptmx", "/proc/self/mem", "/":
        with closing(os.open(path, os.O_RDONLY | os.O_NOCTTY)) as fd, pytest.raises(Failure, match="no GPU memory"):
            hand_over(broker, fd, 2 * MIB)
    reader, writer = os.pipe()
    with closing(reader, writer), pytest.raises(Failure, match="no GPU memory"):
        hand_over(broker, reader, 2 * MIB)
    with closing(os.open("/dev/null", os.O_PATH)) as fd, pytest.raises(Failure, match="no open file"):
        hand_over(broker, fd, 2 * MIB)
    with closing(memfd(size=4096)) as fd, pytest.raises(Failure, match="lacks the seals GROW, SHRINK, SEAL"):
        hand_over(broker, fd, 4096)
    with closing(sealed(size=4096)) as fd, pytest.raises(Failure, match="4096 bytes, 8192 were promised"):
        hand_over(broker, fd, 8192)
    assert broker.becomes_empty()


def test_what_a_gpu_may_be_is_not_enough_for_the_host(broker):
    size_sealed = 0x1 | 0x2 | 0x4  # SEAL, SHRINK, GROW
    with closing(seal(memfd(size=4096), size_sealed)) as fd:
        hand_over(broker, fd, 4096)
        with pytest.raises(Failure, match="lacks the seals WRITE"):
            hand_over(broker, fd, 4096, {"model": "/m", "device": "host"})
        with pytest.raises(Failure, match="lacks the seals WRITE"):
            hand_over(broker, fd, 4096, {"model": "/m"})
    assert broker.becomes_empty()


@pytest.mark.parametrize("config, may", [("", False), ("attach = all", False), ("attach = all\nattach_gpu = 1234", False),
                                         ("attach = all\nattach_gpu = 2000", True)])
def test_others_attach_to_a_gpu_only_where_that_is_allowed(other_users, start_broker, small, fake, config, may):
    broker = start_broker(config=f"[broker]\nopen = all\n[access]\n{config}\n", leaves_models=True)
    for device in "cuda:0", "host":
        broker.cli("load", small, "--name", "small", "--device", device, "--visible", "all", prefix=fake.prefix(), expect=0)
    # The library is looked for by a user who cannot read the build folder; an attach that maps nothing is enough.
    if config:
        with harness.connect_as(2000, broker.directory) as client:
            client.attach("small", key={"device": "host"}).close()
            if may:
                client.detach()
                message = client.call(6, __import__("protocol").selector("small", {"device": uuid(0)}))
                assert len(message.fds) == 2
                message.close()
            else:
                client.detach()
                with pytest.raises(Failure) as refused:
                    client.attach("small", key={"device": uuid(0)})
                assert refused.value.code in (3, 4)  # there is none, or another one
