"""An attached engine computes what an ordinary load computes: to the last bit with the same kernels, and closely with
vLLM's packed ones. One prompt at a time: batched prompts differ between two ordinary runs too."""

import pytest

import models

MATRIX = [(kind, dtype) for kind in ("llama", "qwen3", "qwen3-tied", "qwen3-moe") for dtype in ("bfloat16", "float32")]
TIED = [("qwen3-redundant", "bfloat16"), ("qwen3-untied", "bfloat16")]
CLOSE = {"bfloat16": 0.02, "float32": 1e-4}


def tokens(said):
    return [answer["tokens"] for answer in said]


@pytest.mark.parametrize(("kind", "dtype"), MATRIX + TIED)
def test_equals_an_ordinary_load_to_the_last_bit(answers, kind, dtype):
    control = answers(kind, dtype, "control")["said"]
    # Cold twice equal, or nothing can be said about this run.
    assert answers(kind, dtype, "again")["said"] == control, "void: two ordinary loads differ"
    attached = answers(kind, dtype, "attached")
    assert attached["state"][0]["loads"][0]["how"] == "attached"
    assert len(control) == 20 and all(len(a["tokens"]) == 32 for a in control)
    assert len({tuple(t) for t in tokens(control)}) == 20  # the prompts matter
    assert tokens(attached["said"]) == tokens(control)
    assert attached["said"] == control  # log-probabilities too


@pytest.mark.parametrize(("kind", "dtype"), MATRIX + TIED)
def test_every_tensor_is_the_publishers(answers, kind, dtype):
    """Byte for byte, and shared: nothing but buffers that the engine computes or writes is its own."""
    control = answers(kind, dtype, "control")["tensors"][0][0]
    published = answers(kind, dtype, "published")["tensors"][0][0]
    attached = answers(kind, dtype, "attached")["tensors"][0][0]
    assert {n: t[:3] for n, t in attached.items()} == {n: t[:3] for n, t in control.items()}
    assert {n: t[:3] for n, t in attached.items()} == {n: t[:3] for n, t in published.items()}
    for name, (_, _, _, permissions) in attached.items():
        if name.endswith("weight"):
            assert permissions == "r--s", name


@pytest.mark.parametrize(("kind", "dtype"), [("llama", "bfloat16"), ("qwen3-tied", "float32")])
def test_tensors_are_the_checkpoints(answers, checkpoint, kind, dtype):
    """Where the layout allows: fused matrices are the checkpoint's, one above the other."""
    import torch
    from safetensors.torch import load_file

    from job import digest

    disk = load_file(checkpoint(kind, dtype) / "model.safetensors")
    bound = answers(kind, dtype, "attached")["tensors"][0][0]
    compared = 0
    for name, (_, _, found, _) in bound.items():
        if not name.endswith("weight"):
            continue
        stem, _, leaf = name.removesuffix(".weight").rpartition(".")
        parts = {"qkv_proj": "qkv", "gate_up_proj": ("gate", "up")}.get(leaf)
        if parts:
            want = torch.cat([disk[f"{stem}.{part}_proj.weight"] for part in parts])
        else:
            want = disk["model.embed_tokens.weight" if name == "lm_head.weight" and name not in disk else name]
        assert found == digest(want), name
        compared += 1
    assert compared == len([n for n in bound if n.endswith("weight")]) > 10


@pytest.mark.parametrize(("kind", "dtype"), MATRIX)
def test_against_stock_vllm(answers, kind, dtype, record_property):
    """vLLM's packed kernels round differently: close, and another token only where stock itself was near a tie."""
    stock, attached = answers(kind, dtype, "stock")["said"], answers(kind, dtype, "attached")["said"]
    limit = CLOSE[dtype]
    equal = 0
    for mine, theirs in zip(attached, stock):
        for step, (a, b) in enumerate(zip(mine["logprobs"], theirs["logprobs"])):
            chosen_a, chosen_b = str(mine["tokens"][step]), str(theirs["tokens"][step])
            if chosen_a != chosen_b:
                best = sorted(b.values(), reverse=True)
                assert best[0] - best[1] < limit, (
                    f"step {step}: {chosen_a} instead of {chosen_b}, which led by {best[0] - best[1]}"
                )
                break
            assert abs(a[chosen_a] - b[chosen_b]) <= limit
        else:
            equal += 1
    record_property("equal prompts", equal)
    print(f"{kind} {dtype}: {equal} of {len(stock)} prompts equal to stock vLLM")


@pytest.mark.parametrize(("kind", "change"), [("llama", models.zero_a_norm), ("qwen3-moe", models.swap_experts)])
def test_controls_change_tokens_and_are_rejected(answers, start, published, changed, kind, change):
    """The comparison can fail: a small change of content changes tokens. And such a copy never attaches."""
    import harness

    published(kind)
    copy = changed(published(kind), change)
    with start(copy, "control", dtype="bfloat16") as engine:
        assert tokens(engine.generate(prompts=models.prompts())) != tokens(answers(kind, "bfloat16", "control")["said"])
    with pytest.raises(harness.EngineFailed, match="model.safetensors has other content"):
        start(copy, extra={"verify": "hash"}, dtype="bfloat16")
    with pytest.raises(harness.EngineFailed, match="nothing is resident|no model"):
        start(copy, dtype="bfloat16")
