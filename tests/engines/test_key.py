"""The key: whatever decides the bytes rejects, field by field; what sweeps change does not, and tokens stay right."""

import re

import pytest

import harness
import models

# What a sweep changes, and another value of it.
SWEEP = {
    "max_num_seqs": 2,
    "max_num_batched_tokens": 512,
    "block_size": 32,
    "gpu_memory_utilization": 0.5,
    "max_model_len": 128,
    "enable_prefix_caching": True,
    "enforce_eager": False,
}
FIELDS = (
    "architecture",
    "attention_backend",
    "capability",
    "code",
    "code_revision",
    "config",
    "config_format",
    "config_path",
    "convert",
    "data_parallel_rank",
    "data_parallel_size",
    "dtype",
    "engine",
    "engine_version",
    "environment",
    "expert_parallel",
    "expert_placement",
    "hf_overrides",
    "kv_cache_dtype",
    "layout",
    "linear_backend",
    "model",
    "model_impl",
    "moe_backend",
    "pipeline_parallel_rank",
    "pipeline_parallel_size",
    "quantization",
    "quantization_config",
    "quantization_options",
    "redundant_experts",
    "role",
    "runner",
    "tensor_parallel_rank",
    "tensor_parallel_size",
    "torch",
)


@pytest.fixture(scope="module")
def resident(published, broker):
    """A resident model: its folder and its key without the device, which the client adds."""
    path = published("llama")
    key = broker.of(path)[0]["key"]
    return path, {name: value for name, value in key.items() if name != "device"}


def test_the_key_has_the_fields(resident):
    assert set(resident[1]) <= set(FIELDS)
    assert set(FIELDS) - set(resident[1]) == {
        "code",
        "code_revision",
        "config_format",
        "config_path",
        "environment",
        "expert_placement",
        "hf_overrides",
        "kv_cache_dtype",
        "quantization",
        "quantization_config",
        "quantization_options",
        "redundant_experts",
    }


@pytest.fixture(scope="module")
def rejections(resident, run_job):
    path, key = resident
    return dict(zip(FIELDS, run_job("jobs:find_each", key, str(path), [{name: "other"} for name in FIELDS])))


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_rejects(resident, rejections, field):
    """With the field, what was asked for and what is resident; another model is not even near."""
    answer = rejections[field]
    if field == "model":
        assert "no model other; resident for you: " in answer["error"]
        return
    assert (answer["field"], answer["expected"], answer["got"]) == (field, "other", resident[1].get(field, "(none)"))
    assert re.search(rf"{field}: expected other, got ", answer["error"])


def test_a_missing_field_rejects(resident, run_job):
    """A key that says less must not match what says more."""
    path, key = resident
    for name, answer in zip(key, run_job("jobs:find_each", key, str(path), [{name: None} for name in key])):
        assert "error" in answer, name


@pytest.fixture(scope="module")
def variants(checkpoint, folder, run_job):
    """The keys that vLLM's own configuration gives, by what was changed."""
    plain = str(checkpoint("llama"))
    edited = models.altered(plain, folder / "edited", lambda tensors: None)
    config = (edited / "config.json").read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05')
    (edited / "config.json").write_text(config)
    (edited / "modeling.py").write_text("")
    asked = {
        "plain": {},
        "config": {"model": str(edited)},
        "config_path": {"hf_config_path": str(edited)},
        "config_format": {"config_format": "hf"},
        "code": {"model": str(edited), "trust_remote_code": True},
        "code_revision": {"code_revision": "other"},
        "dtype": {"dtype": "float32"},
        "hf_overrides": {"hf_overrides": {"rope_theta": 5000.0}},
        "tensor_parallel_rank": {"ranks": {"tensor": (1, 2)}},
        "pipeline_parallel_rank": {"ranks": {"pipeline": (1, 2)}},
        "data_parallel_rank": {"parallel": {"data_parallel_size": 2, "data_parallel_rank": 1}},
        "expert_parallel": {"parallel": {"enable_expert_parallel": True}},
        "environment": {"environment": {"VLLM_USE_DEEP_GEMM": "0"}},
        "model_impl": {"model_impl": "transformers"},
        "role": {"draft": True},
        "runner": {"runner": "pooling"},
        **{name: {name: value} for name, value in SWEEP.items()},
    }
    return dict(zip(asked, run_job("jobs:keys", [{"model": plain, **options} for options in asked.values()])))


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ("config", {"config", "model"}),
        ("config_path", {"config", "config_path"}),
        ("config_format", {"config_format"}),
        ("code", {"code", "config", "model"}),
        ("code_revision", {"code_revision"}),
        ("dtype", {"dtype"}),
        ("hf_overrides", {"hf_overrides"}),
        ("tensor_parallel_rank", {"tensor_parallel_rank", "tensor_parallel_size"}),
        ("pipeline_parallel_rank", {"pipeline_parallel_rank", "pipeline_parallel_size"}),
        ("data_parallel_rank", {"data_parallel_rank", "data_parallel_size"}),
        ("expert_parallel", {"expert_parallel", "expert_placement", "redundant_experts"}),
        ("environment", {"environment"}),
        ("model_impl", {"model_impl"}),
        ("role", {"role"}),
        ("runner", {"runner", "convert"}),
    ],
)
def test_vllms_settings_reach_the_key(variants, what, fields):
    before, after = variants["plain"], variants[what]
    assert {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)} == fields


@pytest.mark.parametrize("flag", SWEEP)
def test_sweep_flags_are_not_in_the_key(variants, flag):
    assert variants[flag] == variants["plain"]


@pytest.mark.parametrize("flag", SWEEP)
def test_sweep_flags_attach_with_the_tokens_of_a_cold_start(start, resident, flag):
    """The key of the first engine serves every later one, whatever the flag, and the flag still does what it does."""
    said = []
    for format in ("control", "ipc_broker"):
        compiled = {"ENGINES_COMPILE": "1"} if flag == "enforce_eager" else None
        with start(resident[0], format, dtype="bfloat16", environment=compiled, **{flag: SWEEP[flag]}) as engine:
            said.append(engine.generate(prompts=models.prompts(5), tokens=16))
            if format == "ipc_broker":
                assert engine.state()[0]["loads"][0]["how"] == "attached"
    assert said[0] == said[1]


def test_an_engine_with_another_dtype_is_told(start, resident):
    with pytest.raises(harness.EngineFailed, match="dtype: expected float32, got bfloat16"):
        start(resident[0], dtype="float32")


def test_a_function_goes_by_what_is_known_of_it(run_job):
    """Two programs' functions of one name would be one key; vLLM's own differ by what they were made around."""
    said = run_job("jobs:functions")
    assert "say it as a mapping" in said["user"]
    assert said["one"] != said["other"] and said["one"] == said["again"]
