"""Models in the memory of GPUs, on a driver without a GPU: devices, numbers and addresses are right in what frameworks get.

The fake driver (tests/fake-cuda) is found by IPC_CACHE_FAKE_CUDA, the path of its libcuda.so.1; make test-python sets it.
"""

import json
import os

import pytest

import ipc_cache

from harness import run_python, write_safetensors

FAKE = os.environ.get("IPC_CACHE_FAKE_CUDA")
pytestmark = pytest.mark.skipif(FAKE is None, reason="IPC_CACHE_FAKE_CUDA does not name the fake driver")


def uuid(number):
    return f"GPU-fa4e0c0d-0001-4000-8000-{number + 1:012x}"


@pytest.fixture
def gpus(broker, tmp_path):
    """run(code, **environment): in a process that sees two GPUs; what it printed, as JSON."""
    here = os.path.dirname(__file__)
    settings = {
        "LD_LIBRARY_PATH": os.path.dirname(FAKE or ""), "FAKE_CUDA_GPUS": "2", "FAKE_CUDA_MEMORY": str(64 << 20),
        "FAKE_CUDA_SCOPE": f"{os.getpid()}-{tmp_path.name}", "FAKE_CUDA_LEAKS": str(tmp_path / "leaks"),
        "PYTHONPATH": os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])]),
    }  # fmt: skip

    def run(code, **environment):
        out, _ = run_python(code, broker.directory, **{**settings, **environment})
        return json.loads(out)

    yield run
    leaks = tmp_path / "leaks"
    assert not leaks.exists() or leaks.read_text() == ""


PUBLISH = """
    import json, ipc_cache
    made = ipc_cache.publish({"a": bytes(range(100)), "b": b"second"}, {"model": "x"}, name="x", device="cuda:1")
    print(json.dumps(made.key))
"""

ATTACH = """
    import json, dl, ipc_cache
    from ipc_cache import _library
    weights = ipc_cache.attach("x")
    taken = dl.Taken(weights.dlpack("b").__dlpack__(max_version=(1, 1)))
    begin = _library.library().ipcc_segment_address(weights._model, 0)
    inside = taken.data - begin - weights.entry("b").offset
    weights.verify()
    weights.suspend(); weights.resume()
    weights.verify()
    again = _library.library().ipcc_segment_address(weights._model, 0)
    out = [weights.dlpack("b").__dlpack_device__(), taken.device, inside, again == begin, taken.read_only,
           [segment.device for segment in weights.manifest.segments]]
    taken.drop()
    weights.close()
    print(json.dumps(out))
"""


def test_the_device_is_told_as_this_process_counts(gpus):
    assert gpus(PUBLISH)["device"] == uuid(1)
    assert gpus(ATTACH) == [[2, 1], [2, 1], 0, True, True, [uuid(1)]]
    # The other way round, and alone.
    assert gpus(ATTACH, CUDA_VISIBLE_DEVICES="1,0")[:2] == [[2, 0], [2, 0]]
    assert gpus(ATTACH, CUDA_VISIBLE_DEVICES=uuid(1))[:2] == [[2, 0], [2, 0]]


def test_many_small_tensors_take_few_streams(gpus, tmp_path):
    """Streams cost memory of the GPU, which an engine that publishes itself would lack afterwards."""
    log = tmp_path / "calls"
    publish = """
        import json, ipc_cache
        tensors = {f"t{i:03}": bytes([i]) * (1 + i % 7) for i in range(200)}
        print(json.dumps(ipc_cache.publish(tensors, {"model": "x"}, name="x", device="cuda:0").key))
    """
    assert gpus(publish, FAKE_CUDA_LOG=str(log))["device"] == uuid(0)
    assert 1 <= log.read_text().count(" cuStreamCreate") <= 4
    attach = """
        import json, ipc_cache
        weights = ipc_cache.attach("x")
        weights.verify()
        print(json.dumps(len(weights)))
    """
    assert gpus(attach) == 200


def test_a_gpu_that_this_process_does_not_see(gpus):
    gpus(PUBLISH)
    code = """
        import json, ipc_cache
        try:
            ipc_cache.attach("x")
        except ipc_cache.NotFound as error:
            print(json.dumps(str(error)))
    """
    said = gpus(code, CUDA_VISIBLE_DEVICES="0")
    assert uuid(1) in said and uuid(0) in said
    assert ipc_cache.models()[0].leases == 0


def test_which_of_several_devices(gpus):
    gpus(PUBLISH)
    code = """
        import json, ipc_cache
        ipc_cache.publish({"a": b"host"}, {"model": "x"}, name="x")
        found = []
        for device in ("cuda:1", "host", "cpu"):
            with ipc_cache.attach("x", device=device) as weights:
                found.append([segment.device for segment in weights.manifest.segments])
        try:
            ipc_cache.attach("x", device="cuda:0")
        except ipc_cache.Mismatch as error:
            found.append([error.field, error.expected])
        print(json.dumps(found))
    """
    assert gpus(code) == [[uuid(1)], ["host"], ["host"], ["device", uuid(0)]]


def test_there_is_no_private_copy_on_a_gpu(gpus):
    gpus(PUBLISH)
    code = """
        import json, ipc_cache
        try:
            ipc_cache.attach("x", private=True)
        except ipc_cache.Refused as error:
            print(json.dumps(str(error)))
    """
    assert "no copy-on-write" in gpus(code)


def test_host_memory_is_not_suspended(gpus):
    code = """
        import json, ipc_cache
        ipc_cache.publish({"a": b"host"}, {"model": "x"}, name="x")
        with ipc_cache.attach("x") as weights:
            try:
                weights.suspend()
            except ipc_cache.Refused as error:
                print(json.dumps(str(error)))
    """
    assert "nothing to give back" in gpus(code)


MOVED = """
    import json, ipc_cache
    from ipc_cache import _library
    # Memory that others filled before: what a segment has beyond its tensors must not show it.
    ipc_cache.publish({"a": b"\\xab" * (6 << 20)}, {"model": "before"}, name="before", device="cuda:0")
    with ipc_cache.Client() as client:
        client.evict("before")
    tensors = {"a": bytes(range(100)), "b": b"second"}
    ipc_cache.publish(tensors, {"model": "x"}, name="x", device="cuda:0", consume=True)
    with ipc_cache.attach("x") as weights:
        weights.verify()
        size = weights.manifest.segments[0].nbytes
        content = bytearray(size)
        call = _library.call
        call("ipcc_read", weights._model, 0, 0, (_library.c.c_char * size).from_buffer(content), size)
        used = sorted((e.offset, e.nbytes) for e in weights.manifest.tensors)
    rest = bytearray(content)
    for offset, nbytes in used:
        rest[offset : offset + nbytes] = bytes(nbytes)
    print(json.dumps([content[:100] == bytes(range(100)), any(rest)]))
"""


def test_consuming_makes_segments_one_by_one_and_shows_nothing_of_what_was_there(gpus):
    assert gpus(MOVED) == [True, False]


def test_a_model_that_a_keeper_holds_is_refused_and_its_lease_given_back(gpus, tmp_path):
    """Tensors would outlive the lease, and the memory would not."""
    path = write_safetensors(tmp_path / "kept.safetensors", {"a": ("F32", (64,), bytes(256))})
    code = f"""
        import json, subprocess, ipc_cache
        from ipc_cache.loader import program
        command = [program("ipc-cache"), "load", "--keeper", "--json", "--device", "cuda:0", {path!r}]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as keeper:
            try:
                ipc_cache.attach("kept", wait=30)
            except ipc_cache.Refused as error:
                print(json.dumps([str(error), ipc_cache.models()[0].leases]))
            finally:
                keeper.terminate()
    """
    message, leases = gpus(code)
    assert "ends with the lease" in message and "ipc-cache copy" in message and leases == 0
