"""Attaching without any framework: what the manifest says, what the bytes are, how files are compared, each error."""

import array
import ctypes as c
import os
import shutil
import signal
import threading

import pytest

import ipc_cache
from ipc_cache import _library
from ipc_cache.client import Connection
from ipc_cache.publication import _Publication

import dl
from harness import age, forked, run_python, running, small_checkpoint, wait_until, write_safetensors


def read(weights, name):
    """A tensor's bytes through a capsule, which is dropped again."""
    taken = dl.Taken(weights.dlpack(name).__dlpack__())
    content = taken.read(weights.entry(name).nbytes)
    taken.drop()
    return content


def claim(name):
    """A publication that is begun and not committed, and its connection."""
    connection = Connection(None, 10, None)
    fields, count = _library.fields({"model": name, "device": "host"})
    sizes = (c.c_uint64 * 1)(4096)
    options = _library.PublishOptions(name.encode(), fields, count, b"host", sizes, 1, 0, 0, 0, False)
    return _Publication(connection, 0, options), connection


def test_the_bytes_are_those_of_the_file(resident, tmp_path):
    _, values = small_checkpoint(str(tmp_path), "again")
    with ipc_cache.attach(resident) as weights:
        assert list(weights) == list(values) and len(weights) == 2 and "embed.weight" in weights
        for name, floats in values.items():
            assert read(weights, name) == array.array("f", floats).tobytes()
        entry = weights.entry("embed.weight")
        assert (entry.dtype, entry.shape, entry.strides, entry.alias_of) == ("F32", (3, 4), (4, 1), None)
        weights.verify()
        with pytest.raises(KeyError):
            weights.entry("nothing")


def test_the_manifest(resident):
    with ipc_cache.attach(resident) as weights:
        manifest = weights.manifest
    assert (manifest.name, manifest.owner_uid, len(manifest)) == ("model", os.getuid(), 2)
    assert manifest.key["model"] == os.path.realpath(resident) and manifest.source_state == "same"
    assert [source.name for source in manifest.sources] == ["model.safetensors"]
    assert manifest.sources[0].hash is not None and manifest.segments[0].device == "host"
    assert manifest.nbytes == sum(segment.nbytes for segment in manifest.segments)
    assert "model" in repr(manifest)


def test_by_name_by_key_and_by_path(resident):
    (model,) = ipc_cache.models()
    for wanted in ("model", model.key_id[:6], resident, os.path.relpath(resident)):
        with ipc_cache.attach(wanted) as weights:
            assert weights.manifest.key_id == model.key_id
    with ipc_cache.attach(key=model.key, exact=True) as weights:
        assert weights.manifest.key_id == model.key_id
    with ipc_cache.attach("model", device="cpu"), pytest.raises(ipc_cache.Mismatch) as caught:
        ipc_cache.attach("model", key={"layout": "engine"})
    assert (caught.value.field, caught.value.expected, caught.value.got) == ("layout", "engine", "checkpoint")


def test_absent_says_what_is_there(resident):
    with pytest.raises(ipc_cache.NotFound, match="resident for you: .*model"):
        ipc_cache.attach("something-else")
    with pytest.raises(ipc_cache.NotFound, match="does not exist here"):
        ipc_cache.attach("/nowhere/model")


def test_loading(broker, checkpoint):
    publication, connection = claim("model")
    with pytest.raises(ipc_cache.Busy, match=f"process {os.getpid()}"):
        ipc_cache.attach("model")
    (model,) = ipc_cache.models()
    assert model.state == "loading" and model.generation == 0
    publication.free()
    connection.close()


def test_another_content_is_a_mismatch(resident):
    path = os.path.join(resident, "model.safetensors")
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    age(path)
    with pytest.raises(ipc_cache.Unknown, match="verify"):
        ipc_cache.attach(resident)
    with pytest.raises(ipc_cache.Mismatch) as caught:
        ipc_cache.attach(resident, verify="hash")
    assert caught.value.field == "model.safetensors" and caught.value.expected != caught.value.got
    with ipc_cache.attach(resident, verify="none") as weights:
        assert weights.manifest.source_state == "unchecked"


def test_a_copy_of_the_files_is_recognised_by_content(resident, tmp_path):
    copy = shutil.copytree(resident, tmp_path / "copy")
    with pytest.raises(ipc_cache.Unknown):
        ipc_cache.attach("model", sources=copy)
    with ipc_cache.attach("model", sources=copy, verify="hash") as weights:
        assert weights.manifest.source_state == "verified"


def test_a_larger_file_is_a_mismatch_at_once(resident):
    path = os.path.join(resident, "model.safetensors")
    with open(path, "ab") as file:
        file.write(b"more")
    with pytest.raises(ipc_cache.Mismatch, match="bytes"):
        ipc_cache.attach(resident)


def test_a_device_that_is_not_there(resident):
    with pytest.raises(ipc_cache.NotFound, match="cuda:7"):
        ipc_cache.attach(resident, device="cuda:7")
    with pytest.raises(ipc_cache.NotFound):
        ipc_cache.attach(resident, device="GPU-12345678-1234-1234-1234-123456789abc")


def test_one_connection_has_one_lease(resident):
    with ipc_cache.Client() as client:
        first = client.attach(resident)
        with pytest.raises(ipc_cache.Usage, match="lease already"):
            client.attach(resident)
        first.detach()
        second = client.attach(resident)
        assert (first.lease, second.lease) == ("ended", "held")
        second.close()
        first.close()


def test_the_lease_ends_when_it_is_told_to(resident):
    weights = ipc_cache.attach(resident)
    assert weights.lease == "held" and "lease held" in repr(weights)
    weights.detach()
    weights.detach()
    assert weights.lease == "ended" and read(weights, "head.bias")
    weights.close()
    weights.close()
    assert weights.lease == "ended" and "closed" in repr(weights)
    with pytest.raises(ipc_cache.Usage, match="closed"):
        weights.dlpack("head.bias").__dlpack__()


def test_what_was_taken_outlives_everything(resident, broker):
    weights = ipc_cache.attach(resident)
    taken = [dl.Taken(weights.dlpack(name).__dlpack__()) for name in weights]
    left = weights.dlpack("head.bias").__dlpack__()  # a capsule that nobody takes
    before = taken[0].read(48)
    weights.close()
    ipc_cache.evict(resident)
    assert taken[0].read(48) == before
    del left
    for each in taken:
        each.drop()
    assert "ipc-cache-segment" not in open("/proc/self/maps").read()


def test_capsules(resident):
    with ipc_cache.attach(resident) as weights:
        exporter = weights.dlpack("embed.weight")
        assert exporter.__dlpack_device__() == (1, 0)
        plain, versioned = dl.Taken(exporter.__dlpack__()), dl.Taken(exporter.__dlpack__(max_version=(1, 1)))
        assert (plain.versioned, versioned.versioned, versioned.read_only) == (False, True, True)
        for taken in (plain, versioned):
            assert (taken.shape, taken.strides, taken.type) == ((3, 4), (4, 1), (2, 32, 1))
            taken.drop()
        for options in ({"copy": True}, {"dl_device": (2, 0)}):
            with pytest.raises(BufferError):
                exporter.__dlpack__(**options)
    with ipc_cache.attach(resident, private=True) as weights:
        taken = dl.Taken(weights.dlpack("embed.weight").__dlpack__(max_version=(1, 1)))
        assert taken.versioned and not taken.read_only
        taken.drop()


def test_every_type_has_its_code(broker, tmp_path):
    codes = {
        "BOOL": (6, 8), "F4": (17, 4), "F6_E2M3": (15, 6), "F6_E3M2": (16, 6), "U8": (1, 8), "I8": (0, 8),
        "F8_E5M2": (12, 8), "F8_E4M3": (10, 8), "F8_E8M0": (14, 8), "F8_E4M3FNUZ": (11, 8), "F8_E5M2FNUZ": (13, 8),
        "I16": (0, 16), "U16": (1, 16), "F16": (2, 16), "BF16": (4, 16), "I32": (0, 32), "U32": (1, 32),
        "F32": (2, 32), "C64": (5, 64), "F64": (2, 64), "I64": (0, 64), "U64": (1, 64),
    }  # fmt: skip
    tensors = {name: (name, (2, 4), bytes(8 * bits // 8)) for name, (_, bits) in codes.items()}
    path = write_safetensors(tmp_path / "every.safetensors", tensors)
    ipc_cache.load(path)
    with ipc_cache.attach(path) as weights:
        assert set(weights) == set(codes)
        for name, code in codes.items():
            taken = dl.Taken(weights.dlpack(name).__dlpack__(max_version=(1, 1)))
            assert taken.type == (*code, 1), name
            taken.drop()


def test_private_pages_are_ones_own(resident):
    with ipc_cache.attach(resident, private=True) as mine, ipc_cache.attach(resident) as shared:
        taken = dl.Taken(mine.dlpack("head.bias").__dlpack__())
        before = read(shared, "head.bias")
        c.memset(taken.data, 0, 8)
        assert taken.read(8) == bytes(8) and read(shared, "head.bias") == before
        taken.drop()


@pytest.mark.parametrize("ask", ["lease", "detach"])
def test_who_asks_while_another_thread_closes(resident, ask):
    """It waits for the connection, and by the time that it has it the model is freed."""
    weights = ipc_cache.attach(resident)
    answers, asked = [], threading.Event()

    class Lock:
        """Tells when the other thread waits for the one that it stands for."""

        def __init__(self, lock):
            self.lock = lock

        def __enter__(self):
            asked.set()
            return self.lock.__enter__()

        def __exit__(self, *error):
            return self.lock.__exit__(*error)

    connection = weights._connection
    with connection.lock:
        plain, connection.lock = connection.lock, Lock(connection.lock)
        thread = threading.Thread(target=lambda: answers.append(weights.lease if ask == "lease" else weights.detach()))
        thread.start()
        assert asked.wait(30)
        connection.lock = plain
        weights.close()
    thread.join()
    assert answers == ["ended" if ask == "lease" else None]


def test_a_forked_child_reads_and_the_lease_stays_the_parents(resident):
    weights = ipc_cache.attach(resident)
    want = read(weights, "head.bias")

    def child():
        assert weights.lease == "held" and read(weights, "head.bias") == want
        weights.detach()
        weights.close()
        with ipc_cache.attach(resident) as own:
            assert own.lease == "held"

    with forked(child) as finish:
        finish()
    assert weights.lease == "held" and ipc_cache.models()[0].leases == 1
    weights.close()


def test_a_child_keeps_the_lease_when_its_parent_dies(resident, broker):
    code = """
        import os, signal, time
        import ipc_cache
        weights = ipc_cache.attach("model")
        parent = os.getpid()
        if os.fork() == 0:
            while os.getppid() == parent:
                time.sleep(0.01)
            print(ipc_cache.models()[0].leases, flush=True)
            os._exit(0)
        os.kill(parent, signal.SIGKILL)
    """
    out, _ = run_python(code, broker.directory, status=-9)
    assert out.strip() == "1"


def test_killed_holders_leave_nothing(resident, broker):
    code = """
        import sys, ipc_cache
        weights = ipc_cache.attach("model")
        print("attached", flush=True)
        sys.stdin.read()
    """
    with running(code, broker.directory) as one, running(code, broker.directory) as two:
        assert ipc_cache.models()[0].leases == 2
        one.send_signal(signal.SIGKILL)
        wait_until(lambda: ipc_cache.models()[0].leases == 1, "the lease of the killed process to end")
        assert [holder.pid for holder in ipc_cache.models()[0].holders] == [two.pid]
