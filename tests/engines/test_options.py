"""Options, refusals, accounting and what the plugin tells; without an engine where none is needed."""

import pytest

import harness
import models


@pytest.fixture(scope="module")
def options(variables):
    from ipc_cache.vllm.options import Options

    return Options


def test_options_are_checked(options):
    assert options.parse({}) == options() == options.parse(None)
    made = options.parse(
        {"dir": "/run/x", "wait": "forever", "verify": "hash", "on_miss": "publish", "make_room": True}
    )
    assert (made.dir, made.wait, made.verify, made.on_miss, made.make_room) == (
        "/run/x",
        float("inf"),
        "hash",
        "publish",
        True,
    )
    for wrong, said in (
        (("wat", 1), "unknown key 'wat'"),
        (("wait", -1), "number of seconds"),
        (("wait", True), "number of seconds"),
        (("verify", "no"), "one of stat, hash, none"),
        (("on_miss", "retry"), "one of fail, load, publish"),
        (("private", "yes"), "true or false"),
        (("dir", ""), "non-empty string"),
    ):
        with pytest.raises(ValueError, match=said):
            options.parse(dict([wrong]))
    with pytest.raises(ValueError, match="must be a JSON object"):
        options.parse(["dir"])


def test_an_engine_with_a_wrong_option_says_so(start, checkpoint):
    with pytest.raises(harness.EngineFailed, match="unknown key 'sokcet' in --model-loader-extra-config; known: dir"):
        start(checkpoint("llama"), extra={"sokcet": "x"})


def test_register_never_raises(run_job):
    answers = run_job("jobs:register_broken")
    assert answers["raised"] is None
    assert "could not be loaded: no such luck" in answers["selected"]
    assert answers["twice"] is None
    assert answers["own_kept"]


WRITERS = {
    "parallel_config.enable_eplb": (True, "--enable-eplb"),
    "parallel_config.enable_elastic_ep": (True, "--enable-elastic-ep"),
    "weight_transfer_config": ({}, "--weight-transfer-config"),
    "model_config.enable_sleep_mode": (True, "--enable-sleep-mode"),
    "offload_config.uva.cpu_offload_gb": (1, "--cpu-offload-gb"),
    "quant_config": ({}, "online quantisation"),
}


def test_what_writes_weights_is_refused_with_the_way_out(run_job):
    said = run_job("jobs:refused", [["", None], *([path, value] for path, (value, _) in WRITERS.items())])
    assert said.pop("") is None
    for path, (_, setting) in WRITERS.items():
        assert setting in said[path] and '{"private": true}' in said[path]


def test_a_refused_setting_reaches_the_engine(start, published):
    with pytest.raises(harness.EngineFailed, match="online quantisation|cannot be rebuilt|--quantization"):
        start(published("llama"), dtype="bfloat16", quantization="fp8")


def test_a_private_copy_can_be_written(start, published):
    path = published("llama")
    with start(path, dtype="bfloat16") as engine:
        said = engine.generate(prompts=models.prompts(2))
    with start(path, extra={"private": True}, dtype="bfloat16") as engine:
        assert engine.generate(prompts=models.prompts(2)) == said
        load = engine.state()[0]["loads"][0]
        assert load["shared"] == 0 and load["private"] > 0
        assert engine.overwrite(name="model.norm.weight") == [True]
        assert engine.generate(prompts=models.prompts(2)) != said
    with start(path, dtype="bfloat16") as engine:
        assert engine.generate(prompts=models.prompts(2)) == said


def test_a_write_to_shared_weights_ends_the_engine_and_is_named(start, published):
    path = published("llama")
    engine = start(path, extra={"trace_writes": True}, dtype="bfloat16")
    with pytest.raises(harness.EngineFailed, match="the engine ended"):
        engine.overwrite(name="model.norm.weight")
    assert "model.norm.weight" in engine.text()


@pytest.mark.parametrize("own", [False, True])
def test_reloading_in_place_is_refused(start, published, own):
    with start(published("llama"), dtype="bfloat16") as engine:
        said = engine.generate(prompts=models.prompts(2))
        assert "cannot be reloaded in place while they are shared; restart" in engine.reload(own=own)[0]
        assert engine.generate(prompts=models.prompts(2)) == said


@pytest.mark.parametrize("skip", ["0", "1"])
def test_a_reload_is_refused_before_a_tensor_has_changed(monkeypatch, skip):
    """The model's own tensors too, which a reload would take first."""
    import torch
    from vllm.model_executor.model_loader import utils
    from vllm.model_executor.model_loader.reload import layerwise

    from ipc_cache.vllm import refuse, reload

    monkeypatch.setenv(reload.SKIP, skip)
    model = torch.nn.Linear(2, 2)
    before = dict(model.named_parameters())
    ordinary = utils.record_metadata_for_reloading
    with reload.denied():
        utils.record_metadata_for_reloading(model)
    assert utils.record_metadata_for_reloading is ordinary
    assert bool(layerwise.get_layerwise_info(model).restore_metadata[0]) == (skip == "0")
    for _ in range(2):
        with pytest.raises(refuse.Refused, match="cannot be reloaded in place"):
            layerwise.initialize_layerwise_reload(model)
        assert all(now is before[name] for name, now in model.named_parameters())


def test_private_weights_can_be_reloaded(start, published):
    with start(published("llama"), extra={"private": True}, dtype="bfloat16") as engine:
        said = engine.generate(prompts=models.prompts(2))
        assert engine.overwrite(name="model.norm.weight") == [True]
        assert engine.generate(prompts=models.prompts(2)) != said
        assert engine.reload() == [None]
        assert engine.generate(prompts=models.prompts(2)) == said


def test_one_line_and_counters(answers):
    state = answers("llama", "bfloat16", "attached")
    load = state["state"][0]["loads"][0]
    lines = [line for line in state["log"].splitlines() if "ipc_cache: attached target" in line]
    assert len(lines) == 1
    for part in (
        load["key_id"],
        f"{load['tensors']} tensors",
        f"{load['shared']} bytes shared",
        f"{load['private']} private",
        "sources same",
        "connect",
        "skeleton",
        "bind",
        "post-process",
    ):
        assert part in lines[0]
    assert state["state"][0]["counters"]["ipc_cache_attached_total"] == 1


def test_a_miss_that_was_published_is_counted_once(start, checkpoint):
    with start(checkpoint("llama", seed=8), extra={"on_miss": "publish"}, dtype="bfloat16") as engine:
        counters = engine.state()[0]["counters"]
    assert counters["ipc_cache_published_total"] == 1 and counters["ipc_cache_attached_total"] == 0
    assert {name: value for name, value in counters.items() if "miss" in name} == {
        "ipc_cache_miss_total{'field': 'NotFound'}": 1
    }


def test_a_miss_is_counted_by_field_and_loads_with_a_warning(start, published):
    path = published("llama")
    with start(path, extra={"on_miss": "load"}, dtype="float32") as engine:
        state = engine.state()[0]
        assert state["loads"][0]["how"] == "loaded"
        assert state["counters"]["ipc_cache_miss_total{'field': 'dtype'}"] == 1
        assert state["counters"]["ipc_cache_loaded_total"] == 1
        assert "is loaded ordinarily, not shared" in engine.text() and "WARNING" in engine.text()


def test_memory_is_decided_once(run_job, published, broker, checkpoint, own_broker):
    """What the memory query answered is what the load binds, though the broker dies in between."""
    path = str(published("llama"))
    bytes_ = broker.of(path, dtype="bfloat16")[0]["bytes"]
    own, there = own_broker(), own_broker.environment
    miss = str(checkpoint("llama", seed=6))
    assert run_job("jobs:accounted", miss, {"on_miss": "load"}, **there)["outside"] == 0
    first = run_job("jobs:accounted", path, {"on_miss": "publish"}, **there)
    assert (first["outside"], first["how"]) == (0, "published")
    private = run_job("jobs:accounted", path, {"private": True}, **there)
    assert (private["outside"], private["how"], private["shared"]) == (0, "attached", 0)
    answer = run_job("jobs:accounted", path, {}, own.process.pid, **there)
    own.process.wait()
    assert answer["outside"] == bytes_ and answer["how"] == "attached"


def test_replace_publishes_anew(run_job, checkpoint, own_broker):
    """Although the model is resident and fits."""
    own, there = own_broker(), own_broker.environment
    path, publish = str(checkpoint("llama")), {"on_miss": "publish"}
    how = [
        run_job("jobs:accounted", path, extra, **there)["how"]
        for extra in (publish, publish, {**publish, "replace": True})
    ]
    assert how == ["published", "attached", "published"]
    assert [m["state"] for m in own.models()] == ["ready"]


def test_make_room_evicts_unleased_models_oldest_first(run_job, own_broker):
    own_broker()
    there = own_broker.environment
    assert run_job("jobs:fill", ["a", "b", "c"], 1 << 20, **there) == 3 << 20
    sizes = [1 << 20] * 3
    assert run_job("jobs:room", sizes, 0, True, **there) == {"named": [], "left": ["a", "b", "c"]}
    named = run_job("jobs:room", sizes, 1 << 20, False, **there)
    assert [n.split()[0] for n in named["named"]] == ["a", "b", "c"] and named["left"] == ["a", "b", "c"]
    assert run_job("jobs:room", sizes, 2 << 20, True, **there) == {"named": ["a", "b"], "left": ["c"]}
