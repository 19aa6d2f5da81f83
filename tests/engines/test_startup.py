"""Pieces of the plugin that only a GPU's worker uses, without one: the corrected measurement, the collector's switch."""

import gc
import logging
import os
import sys
import threading
import traceback
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from ipc_cache.vllm import accounting, attach, baseline, kernels, startup


def snapshot():
    return SimpleNamespace(total_memory=100, free_memory=30, cuda_memory=70, non_torch_memory=60, torch_memory=10)


def test_what_is_bound_counts_as_free_and_nothing_else_changes():
    measured = snapshot()
    baseline.correct(measured, 25)
    assert vars(measured) == {
        "total_memory": 100,
        "free_memory": 55,
        "cuda_memory": 45,
        "non_torch_memory": 35,
        "torch_memory": 10,
    }


def test_an_older_snapshot_without_all_of_it():
    measured = SimpleNamespace(free_memory=30)
    baseline.correct(measured, 25)
    assert measured.free_memory == 55


@pytest.mark.parametrize(
    "load_format, rope, wait, free",
    (("ipc_broker", {"rope_theta": 1}, 0, 55), ("ipc_broker", None, 5, 27), ("auto", {"rope_theta": 1}, 0, 30)),
)
def test_the_check_sees_the_corrected_measurement(monkeypatch, load_format, rope, wait, free):
    """After waiting the device is measured again: 2 are free then, and 25 are what was waited for. Then the driver may load
    kernels of a model that is attached and has a rotary embedding."""
    import vllm.config
    import vllm.model_executor.model_loader

    config = SimpleNamespace(
        load_config=SimpleNamespace(load_format=load_format, device="cuda:0"),
        model_config=SimpleNamespace(dtype="bfloat16", hf_text_config=SimpleNamespace(rope_parameters=rope)),
    )
    seen, loading = [], []
    monkeypatch.setattr(kernels, "load", lambda *where: loading.append((str(where[0]), where[1])))
    monkeypatch.setattr(vllm.config, "get_current_vllm_config", lambda: config)
    monkeypatch.setattr(
        vllm.model_executor.model_loader,
        "get_model_loader",
        lambda load: SimpleNamespace(
            get_external_weight_memory=lambda given: seen.append(given) or 25,
            options=SimpleNamespace(wait=wait, make_room=False),
        ),
    )
    request = baseline._corrected(lambda measured, cache, *more: (measured.free_memory, cache, more), ("ipc_broker",))
    measured = snapshot()
    measured.measure = lambda: setattr(measured, "free_memory", 2)
    assert request(measured, "cache", 1) == (free, "cache", (1,))
    attaches = load_format == "ipc_broker"
    assert seen == ([config] if attaches else [])
    assert loading == ([("cuda:0", "bfloat16")] if attaches and rope else [])


@pytest.mark.parametrize("device, value, begun", (("cuda:1", "1", True), ("cuda:1", "0", False), ("cpu", "1", False)))
def test_kernels_are_loaded_beside_and_waited_for(monkeypatch, device, value, begun):
    """On a GPU, while the worker goes on; whatever goes wrong there the constructor will meet, too."""
    free, called, entered = threading.Event(), [], []

    def rotary(*where):
        called.append(where)
        free.wait(30)
        called.append(threading.current_thread() is threading.main_thread())
        raise RuntimeError("no such device")

    monkeypatch.setenv(startup.PREFETCH, value)
    monkeypatch.setattr(kernels, "rotary", rotary)
    monkeypatch.setattr(torch.cuda, "device", lambda of: entered.append(of) or nullcontext())
    kernels.load(torch.device(device), torch.bfloat16)
    free.set()
    kernels.wait()
    assert called == ([(torch.device(device), torch.bfloat16), False] if begun else [])
    assert entered == ([torch.device(device)] if begun else []) and kernels._thread is None


def test_without_another_thread_a_worker_starts_all_the_same(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setenv(startup.PREFETCH, "1")
    monkeypatch.setattr(threading.Thread, "start", start)
    kernels.load(torch.device("cuda:0"), torch.bfloat16)
    kernels.wait()


def test_no_model_is_built_beside_the_thread(monkeypatch):
    """Waiting for it is part of the skeleton's time."""
    steps = []

    class Built(Exception):
        pass

    @contextmanager
    def phase(name):
        steps.append(name)
        yield

    def initialize(*_):
        steps.append("built")
        raise Built

    monkeypatch.setattr(attach, "_initialize", initialize)
    monkeypatch.setattr(attach.platform, "target_device", lambda config: torch.device("cpu"))
    monkeypatch.setattr(kernels, "_thread", SimpleNamespace(join=lambda: steps.append("joined")))
    weights = SimpleNamespace(nbytes=0, private=False)
    with pytest.raises(Built):
        attach.build(None, SimpleNamespace(dtype=torch.bfloat16), "", weights, SimpleNamespace(phase=phase))
    assert steps == ["skeleton", "joined", "built"] and kernels._thread is None


def test_the_kernels_are_those_of_a_rotary_embedding():
    """Every operation that vLLM's computes its table with, on floats in rows of the same alignment."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.add(str(function))
            return function(*args, **(kwargs or {}))

    embedding = SimpleNamespace(rotary_dim=128, base=10000.0, max_position_embeddings=64, dtype=torch.bfloat16)
    embedding._compute_inv_freq = lambda base: RotaryEmbedding._compute_inv_freq(embedding, base)
    names = set()
    with Seen():
        expected = RotaryEmbedding._compute_cos_sin_cache(embedding).to(torch.bfloat16)
    theirs, names = names, set()
    with Seen():
        table = kernels.rotary(torch.device("cpu"), torch.bfloat16)
    assert theirs <= names and "aten.pow.Scalar" in theirs
    assert torch.equal(table, expected)


def test_after_waiting_memory_settles_first():
    """What its publisher gives back meanwhile; not for ever."""
    values = [5, 5, 5, 7, 9, 9]
    slept = []
    accounting.settle(lambda: values[min(len(slept), len(values) - 1)], slept.append)
    assert len(slept) == 4 + 20  # the last change, and a second
    slept.clear()
    accounting.settle(lambda: len(slept), slept.append)
    assert len(slept) == 200


@pytest.mark.parametrize("value, frozen", ((None, True), ("1", True), ("0", False)))
def test_freezing_is_a_switch(monkeypatch, value, frozen):
    if value is None:
        monkeypatch.delenv(startup.FREEZE, raising=False)
    else:
        monkeypatch.setenv(startup.FREEZE, value)
    gc.unfreeze()
    try:
        startup.freeze()
        assert (gc.get_freeze_count() > 0) == frozen
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("value, enabled", (("1", False), ("0", True)))
def test_no_collection_while_a_model_is_built(monkeypatch, value, enabled):
    monkeypatch.setenv(startup.FREEZE, value)
    gc.enable()
    with pytest.raises(KeyError), startup.collector_paused():
        assert gc.isenabled() == enabled
        raise KeyError
    assert gc.isenabled()


def fork(child=lambda: True):
    """Whether child() is true in a forked child."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if child() else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.fixture
def triton_cache(monkeypatch):
    """Triton's module that has the hash, on a machine that seems to have a GPU."""
    import vllm.platforms

    pytest.importorskip("triton")
    from triton.runtime import cache

    monkeypatch.setattr(vllm.platforms, "current_platform", SimpleNamespace(is_cuda_alike=lambda: True))
    monkeypatch.setenv(startup.PREFETCH, "1")
    return cache


def test_a_child_has_what_was_prefetched(monkeypatch, triton_cache):
    monkeypatch.setenv(startup.PREFETCH, "0")
    assert startup.prefetch() is None
    monkeypatch.setenv(startup.PREFETCH, "1")
    thread = startup.prefetch()
    assert fork(lambda: triton_cache.triton_key.cache_info().currsize == 1) and not thread.is_alive()


def test_a_fork_does_not_wait_for_ever(monkeypatch, triton_cache, caplog):
    """The child starts while the thread still hashes; said, and waited for, once."""
    free = threading.Event()
    monkeypatch.setattr(triton_cache, "triton_key", lambda: free.wait(30))
    monkeypatch.setattr(startup, "_PATIENCE_SECONDS", 0.05)
    caplog.set_level(logging.INFO, "vllm.ipc_cache")
    thread = startup.prefetch()
    try:
        assert fork() and fork() and thread.is_alive()
        assert [record.getMessage() for record in caplog.records] == [
            "ipc_cache: Triton's files are not hashed after 0.05 s; the child hashes them itself"
        ]
    finally:
        free.set()
        thread.join()


def test_what_is_preloaded_is_there_before_a_fork(monkeypatch, tmp_path, caplog):
    """In a child, which shall not change this process. What this vLLM does not have, or cannot import without a device, is
    passed over."""
    import torch

    (tmp_path / "asks_the_gpu.py").write_text("import torch\nNAME = torch.cuda.get_device_name(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    cpu = startup._WORKER_MODULES["cpu"]
    monkeypatch.setitem(startup._WORKER_MODULES, "cpu", ("vllm.no_such_module", "asks_the_gpu", *cpu))
    caplog.set_level(logging.DEBUG, "vllm.ipc_cache")
    before = torch.cuda._lazy_init

    def child():
        imported = startup.preload()
        assert "asks_the_gpu is not preloaded: it wants the device when it is imported" in caplog.text
        assert torch.cuda._lazy_init is before
        return imported == list(cpu) and set(cpu) <= set(sys.modules) and gc.get_freeze_count() > 0

    assert fork(child)


@pytest.mark.parametrize("patched", (False, True))
def test_the_compilers_rules_survive_the_process_group(tmp_path, patched):
    """torch forgets them there, and finds them out again when a model is built; what was kept is what it would find, also
    where vLLM has put a function of its own in the place of torch's meanwhile."""
    import torch.distributed

    def child():
        from torch._dynamo import trace_rules

        def bmm(*arguments, **options):
            return original(*arguments, **options)

        startup.preload()
        kept, original = trace_rules.get_torch_obj_rule_map(), torch.bmm
        if patched:
            torch.bmm = bmm
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        now = trace_rules.get_torch_obj_rule_map()
        fresh = trace_rules.get_torch_obj_rule_map.__wrapped__()
        return (now is kept) is not patched and len(now) > 1000 and now == fresh and (bmm in now) is patched

    assert fork(child)
