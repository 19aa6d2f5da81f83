"""Random checkpoints for the engine tests: every architecture in a few hundred kilobytes, made in milliseconds.

The weights are large enough that the next token depends on each of them, and every tensor is different. A checkpoint is a
plain folder, config.json and model.safetensors, without a tokenizer: prompts are token ids.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

VOCAB = 512
COMMIT = "0123456789abcdef0123456789abcdef01234567"  # of hub()

_COMMON = dict(
    hidden_act="silu",
    rms_norm_eps=1e-6,
    attention_bias=False,
    bos_token_id=1,
    eos_token_id=2,
    use_cache=True,
    initializer_range=0.02,
    max_position_embeddings=2048,
    rope_theta=10000.0,
    vocab_size=VOCAB,
    tie_word_embeddings=False,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
)

KINDS = {
    "llama": dict(architectures=["LlamaForCausalLM"], model_type="llama"),
    "qwen3": dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3"),
    "qwen3-tied": dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", tie_word_embeddings=True),
    # The configuration says tied, and the checkpoint holds an lm_head all the same: the same matrix, or another one.
    "qwen3-redundant": dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", tie_word_embeddings=True),
    "qwen3-untied": dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", tie_word_embeddings=True),
    "qwen3-moe": dict(
        architectures=["Qwen3MoeForCausalLM"],
        model_type="qwen3_moe",
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        decoder_sparse_step=1,
        norm_topk_prob=True,
        mlp_only_layers=[],
    ),
    # A draft head of speculative decoding for "llama": one layer, fed by the target's hidden states.
    "eagle": dict(architectures=["LlamaForCausalLM"], model_type="llama", num_hidden_layers=1),
    # 32 MiB: large against a header and what is read ahead with it.
    "wide": dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_size=1024,
        intermediate_size=2048,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=128,
    ),
    # 2 GiB in bf16, for the benchmark.
    "big": dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=20,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=32000,
    ),
}


def _layer(config, prefix):
    """Names and shapes of one decoder layer."""
    hidden, head = config["hidden_size"], config["head_dim"]
    query, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield prefix + "input_layernorm.weight", (hidden,)
    yield prefix + "post_attention_layernorm.weight", (hidden,)
    for name, shape in (("q", (query, hidden)), ("k", (keys, hidden)), ("v", (keys, hidden)), ("o", (hidden, query))):
        yield f"{prefix}self_attn.{name}_proj.weight", shape
    if config["model_type"].startswith("qwen3"):
        yield prefix + "self_attn.q_norm.weight", (head,)
        yield prefix + "self_attn.k_norm.weight", (head,)
    experts = config.get("num_experts", 0)
    if experts:
        yield prefix + "mlp.gate.weight", (experts, hidden)
    inner = config["moe_intermediate_size"] if experts else config["intermediate_size"]
    for part in [f"mlp.experts.{i}." for i in range(experts)] or ["mlp."]:
        yield f"{prefix}{part}gate_proj.weight", (inner, hidden)
        yield f"{prefix}{part}up_proj.weight", (inner, hidden)
        yield f"{prefix}{part}down_proj.weight", (hidden, inner)


def _eagle(config):
    """The draft's own names: no prefix, no first norm, a matrix that joins token and hidden state."""
    for name, shape in _layer(config, "layers.0."):
        if name != "layers.0.input_layernorm.weight":
            yield name, shape
    yield "embed_tokens.weight", (config["vocab_size"], config["hidden_size"])
    yield "fc.weight", (config["hidden_size"], 2 * config["hidden_size"])


def _shapes(kind, config):
    if kind == "eagle":
        yield from _eagle(config)
        return
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        yield from _layer(config, f"model.layers.{i}.")
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"] or kind in ("qwen3-redundant", "qwen3-untied"):
        yield "lm_head.weight", (vocab, hidden)


def _random(shape, rng):
    """Norms near one; matrices scaled so that activations keep their size, and logits are not a lottery of near-ties."""
    if len(shape) == 1:
        return torch.from_numpy(1 + 0.2 * rng.standard_normal(shape, dtype=np.float32))
    return torch.from_numpy(
        rng.standard_normal(shape, dtype=np.float32) * (1.5 / np.sqrt(shape[-1])).astype(np.float32)
    )


def make(folder, kind, dtype=torch.bfloat16, seed=0):
    """Writes the checkpoint `kind` of KINDS into `folder` and returns the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    config = {**_COMMON, **KINDS[kind], "torch_dtype": str(dtype).removeprefix("torch.")}
    rng = np.random.default_rng(seed)
    tensors = {name: _random(shape, rng).to(dtype) for name, shape in _shapes(kind, config)}
    if kind == "qwen3-redundant":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def adapter(folder, rank=4, seed=9):
    """A LoRA adapter for "llama" that changes attention's queries and values."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    rng, tensors, hidden = np.random.default_rng(seed), {}, _COMMON["hidden_size"]
    for i in range(_COMMON["num_hidden_layers"]):
        for part, out in (("q_proj", 128), ("v_proj", 64)):
            name = f"base_model.model.model.layers.{i}.self_attn.{part}."
            tensors[name + "lora_A.weight"] = torch.from_numpy(
                rng.standard_normal((rank, hidden), dtype=np.float32) * 0.2
            )
            tensors[name + "lora_B.weight"] = torch.from_numpy(rng.standard_normal((out, rank), dtype=np.float32) * 0.2)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = dict(
        peft_type="LORA",
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=rank,
        lora_dropout=0.0,
        bias="none",
        target_modules=["q_proj", "v_proj"],
        base_model_name_or_path="llama",
    )
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def altered(source, folder, change):
    """A copy of the checkpoint `source` in `folder`, with `change(tensors)` applied to its tensors."""
    source, folder = Path(source), Path(folder)
    folder.mkdir(parents=True)
    tensors = {name: tensor.clone() for name, tensor in load_file(source / "model.safetensors").items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text((source / "config.json").read_text())
    return folder


def hub(source, folder, name):
    """The hub's cache with a checkpoint under an id: blobs by hash, and a snapshot folder of links, which is returned."""
    repo = folder / f"models--{name.replace('/', '--')}"
    snapshot = repo / "snapshots" / COMMIT
    for path in (repo / "blobs", repo / "refs", snapshot):
        path.mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    for i, file in enumerate(("config.json", "model.safetensors")):
        (repo / "blobs" / f"{i:064}").write_bytes((source / file).read_bytes())
        (snapshot / file).symlink_to(f"../../blobs/{i:064}")
    return snapshot


def zero_a_norm(tensors):
    """One normalisation switched off: the smallest change of content that must not go unnoticed."""
    tensors["model.layers.1.post_attention_layernorm.weight"].zero_()


def swap_experts(tensors):
    """Two experts of the first layer change places; names and shapes stay."""
    for part in ("gate_proj", "up_proj", "down_proj"):
        a, b = (f"model.layers.0.mlp.experts.{i}.{part}.weight" for i in (0, 1))
        tensors[a], tensors[b] = tensors[b], tensors[a]


def prompts(count=20):
    """The token ids of `count` prompts, all different."""
    return [[1] + [(7 * i + j * 13) % (VOCAB - 8) + 3 for i in range(6 + j % 9)] for j in range(count)]
