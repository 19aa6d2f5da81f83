"""Publishing on a GPU from Python, on the fake driver: segments are made one at a time, as what fills them is freed."""
import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
from gpu import BUILD, FakeDriver

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIB = 1 << 20


@pytest.fixture
def fake(folder, binaries):
    driver = FakeDriver(folder)
    yield driver
    assert driver.take("leaks") == ""


def python(broker, fake, code, **more):
    """What a child says, as JSON in its last line; the fake GPU's bytes in use are used()."""
    begin = f"""
        import ctypes, json, os
        import ipc_cache
        from ipc_cache import publication
        publication.GPU_SEGMENT_BYTES = ({2 * MIB}, {4 * MIB})
        driver = ctypes.CDLL("libcuda.so.1")
        free, total, device, context = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_int(), ctypes.c_void_p()
        assert driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0
        assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        assert driver.cuCtxPushCurrent_v2(context) == 0
        def used():
            assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
            return total.value - free.value
        tensors = {{f"t{{i}}": bytes([i]) * {MIB} for i in range(16)}}
    """
    end = "\nassert driver.cuDevicePrimaryCtxRelease_v2(device) == 0\n"
    environment = {**os.environ, **{k: str(v) for k, v in fake.settings(**more).items()}, "PYTHONPATH": str(ROOT / "python"),
                   "IPC_CACHE_LIBRARY": str(BUILD / "libipc_cache.so"), "IPC_CACHE_DIR": str(broker.directory)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(code) + end], env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_segments_are_created_as_they_are_due(broker, fake, not_sanitized):
    broker.leaves_models = True
    said = python(broker, fake, """
        steps = []
        create = publication._Publication.create
        def noted(self, segment):
            steps.append((segment, len(tensors), used()))
            create(self, segment)
        publication._Publication.create = noted
        made = ipc_cache.publish(tensors, {"model": "x"}, name="x", device="cuda:0", consume=True)
        with ipc_cache.attach("x") as weights:
            weights.verify()
            ends = [weights.entry(f"t{i}").segment for i in range(16)]
        print(json.dumps({"steps": steps, "left": len(tensors), "bytes": made.nbytes, "segments": ends}))
    """)
    assert said["segments"] == [i // 2 for i in range(16)] and said["left"] == 0 and said["bytes"] == 16 * MIB
    # Before each new segment all tensors of the earlier ones are gone, and only those segments exist.
    assert said["steps"] == [[i, 16 - 2 * i, 2 * i * MIB] for i in range(8)]


def test_a_gpu_that_fills_up_on_the_way_ends_the_publication(broker, fake, not_sanitized):
    said = python(broker, fake, """
        try:
            ipc_cache.publish(tensors, {"model": "x"}, device="cuda:0", consume=True)
        except ipc_cache.NoMemory as error:
            print(json.dumps({"error": str(error), "models": len(ipc_cache.models()), "used": used()}))
    """, FAKE_CUDA_MEMORY=9 * MIB)
    assert "segment 4" in said["error"] and said["models"] == 0 and said["used"] == 0


def test_what_is_not_created_cannot_be_committed(broker, fake, not_sanitized):
    said = python(broker, fake, """
        errors = []
        class Later(publication._Publication):
            def create(self, segment):
                if segment != 1:
                    super().create(segment)
                    return
                for call in (lambda: super(Later, self).create(0), lambda: super(Later, self).create(99),
                             lambda: self.write(1, 0, 0, 1), self.commit):
                    try:
                        call()
                    except ipc_cache.Usage as error:
                        errors.append(str(error))
                raise KeyboardInterrupt
        publication._Publication = Later
        try:
            ipc_cache.publish(tensors, {"model": "x"}, device="cuda:0", consume=True)
        except KeyboardInterrupt:
            print(json.dumps(errors))
    """)
    assert len(said) == 4 and "created already" in said[0] and "99" in said[1] and "not created" in said[3]
