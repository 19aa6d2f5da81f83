"""Pieces of the plugin that only a GPU's worker uses, without one: the corrected measurement, the collector's switch."""

import gc
from types import SimpleNamespace

import pytest

from ipc_cache.vllm import baseline, startup


def snapshot():
    return SimpleNamespace(total_memory=100, free_memory=30, cuda_memory=70, non_torch_memory=60, torch_memory=10)


def test_what_is_bound_counts_as_free_and_nothing_else_changes():
    measured = snapshot()
    baseline.correct(measured, 25)
    assert vars(measured) == {"total_memory": 100, "free_memory": 55, "cuda_memory": 45, "non_torch_memory": 35, "torch_memory": 10}


def test_an_older_snapshot_without_all_of_it():
    measured = SimpleNamespace(free_memory=30)
    baseline.correct(measured, 25)
    assert measured.free_memory == 55


@pytest.mark.parametrize("load_format, asked", (("ipc_broker", True), ("auto", False)))
def test_the_check_sees_the_corrected_measurement(monkeypatch, load_format, asked):
    import vllm.config
    import vllm.model_executor.model_loader

    config = SimpleNamespace(load_config=SimpleNamespace(load_format=load_format))
    seen = []
    monkeypatch.setattr(vllm.config, "get_current_vllm_config", lambda: config)
    monkeypatch.setattr(vllm.model_executor.model_loader, "get_model_loader", lambda load: SimpleNamespace(
        get_external_weight_memory=lambda given: seen.append(given) or 25))
    request = baseline._corrected(lambda measured, cache, *more: (measured.free_memory, cache, more), ("ipc_broker",))
    assert request(snapshot(), "cache", 1) == (55 if asked else 30, "cache", (1,))
    assert seen == ([config] if asked else [])


@pytest.mark.parametrize("value, frozen", ((None, True), ("1", True), ("0", False)))
def test_freezing_is_a_switch(monkeypatch, value, frozen):
    if value is None:
        monkeypatch.delenv(startup.VARIABLE, raising=False)
    else:
        monkeypatch.setenv(startup.VARIABLE, value)
    gc.unfreeze()
    try:
        startup.freeze()
        assert (gc.get_freeze_count() > 0) == frozen
    finally:
        gc.unfreeze()
