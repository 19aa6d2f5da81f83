"""Pieces of the plugin that only a GPU's worker uses, without one: the corrected measurement, the collector's switch."""

import gc
import logging
import os
import sys
import threading
from types import SimpleNamespace

import pytest

from ipc_cache.vllm import accounting, baseline, startup


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


@pytest.mark.parametrize("load_format, wait, free", (("ipc_broker", 0, 55), ("ipc_broker", 5, 27), ("auto", 0, 30)))
def test_the_check_sees_the_corrected_measurement(monkeypatch, load_format, wait, free):
    """After waiting the device is measured again: 2 are free then, and 25 are what was waited for."""
    import vllm.config
    import vllm.model_executor.model_loader

    config = SimpleNamespace(
        load_config=SimpleNamespace(load_format=load_format, device="cuda:0"),
        model_config=SimpleNamespace(dtype="bfloat16"),
    )
    seen, loading = [], []
    monkeypatch.setattr(startup, "load_kernels", lambda *where: loading.append((str(where[0]), where[1])))
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
    assert loading == ([("cuda:0", "bfloat16")] if attaches else [])


@pytest.mark.parametrize("device, value, begun", (("cuda:0", "1", True), ("cuda:0", "0", False), ("cpu", "1", False)))
def test_kernels_are_loaded_beside_and_waited_for(monkeypatch, device, value, begun):
    """On a GPU, while the worker goes on; whatever goes wrong there the constructor will meet, too."""
    import torch

    free, called = threading.Event(), []

    def rotary(*where):
        called.append(where)
        free.wait(30)
        called.append(threading.current_thread() is threading.main_thread())
        raise RuntimeError("no such device")

    monkeypatch.setenv(startup.PREFETCH, value)
    monkeypatch.setattr(startup, "_rotary", rotary)
    startup.load_kernels(torch.device(device), torch.bfloat16)
    free.set()
    startup.kernels_loaded()
    assert called == ([(torch.device(device), torch.bfloat16), False] if begun else [])
    assert startup._kernels is None


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
        os._exit(0 if child() else 1)
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


def test_the_compilers_rules_survive_the_process_group(tmp_path):
    """torch forgets them there, and finds them out again when a model is built; what was kept is what it would find."""
    import torch.distributed

    def child():
        from torch._dynamo import trace_rules

        fresh = trace_rules.get_torch_obj_rule_map.__wrapped__
        startup.preload()
        kept = trace_rules.get_torch_obj_rule_map()
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        assert trace_rules.get_torch_obj_rule_map() is kept
        found = fresh()
        assert found is not kept and len(found) > 1000
        return found == kept

    assert fork(child)
