"""Small random checkpoints for the runs on a GPU, whose every weight matters; bigmodels.py has the large ones.

    dense   Llama      fp8   Llama, blocks of 128 x 128      moe   Qwen3-MoE

Without a tokenizer: prompts are token ids.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

VOCAB = 1024
BLOCK = 128

SMALL = dict(hidden_act="silu", rms_norm_eps=1e-6, attention_bias=False, bos_token_id=1, eos_token_id=2, use_cache=True,
              max_position_embeddings=4096, rope_theta=10000.0, tie_word_embeddings=False, torch_dtype="bfloat16",
              vocab_size=VOCAB, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
              num_key_value_heads=2, head_dim=64)
_FP8 = dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3", weight_block_size=[BLOCK, BLOCK])

KINDS = {
    "dense": dict(architectures=["LlamaForCausalLM"], model_type="llama"),
    "fp8": dict(architectures=["LlamaForCausalLM"], model_type="llama", quantization_config=_FP8),
    "moe": dict(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_hidden_layers=2, num_experts=8,
                num_experts_per_tok=2, moe_intermediate_size=256, decoder_sparse_step=1, norm_topk_prob=True, mlp_only_layers=[]),
}


def _layer(config, prefix):
    hidden, head = config["hidden_size"], config["head_dim"]
    query, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield from ((prefix + norm + ".weight", (hidden,)) for norm in ("input_layernorm", "post_attention_layernorm"))
    for name, shape in (("q", (query, hidden)), ("k", (keys, hidden)), ("v", (keys, hidden)), ("o", (hidden, query))):
        yield f"{prefix}self_attn.{name}_proj.weight", shape
    if config["model_type"].startswith("qwen3"):
        yield from ((f"{prefix}self_attn.{name}_norm.weight", (head,)) for name in "qk")
    experts = config.get("num_experts", 0)
    if experts:
        yield prefix + "mlp.gate.weight", (experts, hidden)
    inner = config["moe_intermediate_size"] if experts else config["intermediate_size"]
    for part in [f"mlp.experts.{i}." for i in range(experts)] or ["mlp."]:
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            yield f"{prefix}{part}{name}_proj.weight", shape


def shapes(config):
    """Names and shapes of a checkpoint's tensors, before they are quantised."""
    yield "model.embed_tokens.weight", (config["vocab_size"], config["hidden_size"])
    for i in range(config["num_hidden_layers"]):
        yield from _layer(config, f"model.layers.{i}.")
    yield "model.norm.weight", (config["hidden_size"],)
    yield "lm_head.weight", (config["vocab_size"], config["hidden_size"])


def _random(shape, generator):
    """Norms near one, matrices that keep the size of what goes through them."""
    if len(shape) == 1:
        return 1 + 0.2 * torch.randn(shape, generator=generator)
    return torch.randn(shape, generator=generator) * 1.5 / shape[-1] ** 0.5


def _quantized(weight):
    """float8 and the factor of each block."""
    rows, columns = weight.shape
    blocks = weight.reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    scale = blocks.abs().amax(dim=(1, 3), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    return (blocks / scale).reshape(rows, columns).to(torch.float8_e4m3fn), scale.reshape(rows // BLOCK, columns // BLOCK)


def _tensors(config):
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in shapes(config):
        weight = _random(shape, generator)
        if "quantization_config" in config and "_proj" in name:
            tensors[name], tensors[name + "_scale_inv"] = _quantized(weight)
        else:
            tensors[name] = weight.to(torch.bfloat16)
    return tensors


def make(folder, kind):
    """Writes checkpoint `kind` into `folder`, unless it is there, and returns the folder."""
    folder = Path(folder)
    config = {**SMALL, **KINDS[kind]}
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True)
    save_file(_tensors(config), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def altered(source, folder, change):
    """A copy of a small checkpoint with `change(tensors)` applied."""
    tensors = load_file(Path(source) / "model.safetensors")
    change(tensors)
    Path(folder).mkdir(parents=True, exist_ok=True)
    save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
    (Path(folder) / "config.json").write_text((Path(source) / "config.json").read_text())
    return folder


def zero_a_norm(tensors):
    tensors["model.layers.1.post_attention_layernorm.weight"].zero_()


def swap_experts(tensors):
    for part in ("gate_proj", "up_proj", "down_proj"):
        a, b = (f"model.layers.0.mlp.experts.{i}.{part}.weight" for i in (0, 1))
        tensors[a], tensors[b] = tensors[b], tensors[a]


def prompts(count):
    """Token ids of `count` prompts, all different."""
    return [[1] + [(7 * i + j * 13) % (VOCAB - 24) + 3 for i in range(12 + j % 9)] for j in range(count)]
