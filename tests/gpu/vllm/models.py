"""Random checkpoints for the runs on a GPU: small ones whose every weight matters, and one of the shape of an 8B model.

    dense   Llama      fp8   Llama, blocks of 128 x 128      moe   Qwen3-MoE      big   Qwen3, 16.4 GB in bf16
    nvfp4, mxfp4       Llama in compressed-tensors' formats for weights of 4 bits      modelopt   in ModelOpt's NVFP4
    int8, fp8c         Llama in compressed-tensors' W8A8: a scale for each row of a weight, activations scaled token by token

Without a tokenizer: prompts are token ids.
"""

import json
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from compressed import Four, ModelOpt, Scheme

VOCAB = 1024
BLOCK = 128
SHARD_BYTES = 4 << 30

_SMALL = dict(hidden_act="silu", rms_norm_eps=1e-6, attention_bias=False, bos_token_id=1, eos_token_id=2, use_cache=True,
              max_position_embeddings=4096, rope_theta=10000.0, tie_word_embeddings=False, torch_dtype="bfloat16",
              vocab_size=VOCAB, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
              num_key_value_heads=2, head_dim=64)
COMPRESSED = {"int8": Scheme("int"), "fp8c": Scheme("float"), "nvfp4": Four("nvfp4"), "mxfp4": Four("mxfp4"),
              "modelopt": ModelOpt()}
_FP8 = dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3", weight_block_size=[BLOCK, BLOCK])

KINDS = {
    "dense": dict(architectures=["LlamaForCausalLM"], model_type="llama"),
    "fp8": dict(architectures=["LlamaForCausalLM"], model_type="llama", quantization_config=_FP8),
    **{kind: dict(architectures=["LlamaForCausalLM"], model_type="llama", quantization_config=scheme.config())
       for kind, scheme in COMPRESSED.items()},
    "moe": dict(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_hidden_layers=2, num_experts=8,
                num_experts_per_tok=2, moe_intermediate_size=256, decoder_sparse_step=1, norm_topk_prob=True, mlp_only_layers=[]),
    "big": dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=151936, hidden_size=4096,
                intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128),
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


def _shapes(config):
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


def _tensors(config, scheme=None):
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in _shapes(config):
        weight = _random(shape, generator)
        if scheme and "_proj" in name:
            tensors.update(scheme.tensors(name, weight))
        elif "quantization_config" in config and "_proj" in name:
            tensors[name], tensors[name + "_scale_inv"] = _quantized(weight)
        else:
            tensors[name] = weight.to(torch.bfloat16)
    return tensors


def make(folder, kind):
    """Writes checkpoint `kind` into `folder`, unless it is there, and returns the folder."""
    return _write(Path(folder), kind, {**_SMALL, **KINDS[kind]}, COMPRESSED.get(kind))


def make_compressed(folder, scheme, **changes):
    """A small Llama of a Scheme, with changes of its configuration; as make()."""
    config = {**_SMALL, **KINDS["dense"], **changes, "quantization_config": scheme.config()}
    return _write(Path(folder), "dense", config, scheme)


def _write(folder, kind, config, scheme):
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True)
    if kind == "big":
        _write_big(folder, config)
    else:
        save_file(_tensors(config, scheme), folder / "model.safetensors", metadata={"format": "pt"})
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


# ---- the big one: slices of one random block, written by several threads

def _shards(config):
    shard, size = [], 0
    for name, shape in _shapes(config):
        nbytes = 2 * torch.Size(shape).numel()
        if shard and size + nbytes > SHARD_BYTES:
            yield shard
            shard, size = [], 0
        shard.append((name, shape, nbytes))
        size += nbytes
    yield shard


def _write_shard(path, shard, block, ones):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, nbytes in shard:
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb", buffering=0) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for number, (_, shape, nbytes) in enumerate(shard):
            begin = number * 7919 % 4096 * 2
            data = ones[:nbytes] if len(shape) == 1 else block[begin : begin + nbytes]
            while data:
                data = data[file.write(data) :]


def _write_big(folder, config):
    largest = max(torch.Size(shape).numel() for _, shape in _shapes(config))
    seed = (torch.randn(1 << 22, generator=torch.Generator().manual_seed(0)) * 0.02).to(torch.bfloat16)
    values = seed.repeat(-(-(largest + 4096) // seed.numel()))
    block = memoryview(values.view(torch.uint8).numpy())
    ones = memoryview(torch.ones(1 << 16, dtype=torch.bfloat16).view(torch.uint8).numpy())
    shards = list(_shards(config))
    paths = [folder / f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: _write_shard(*job, block, ones), zip(paths, shards)))
    places = {name: path.name for path, shard in zip(paths, shards) for name, _, _ in shard}
    total = sum(nbytes for shard in shards for _, _, nbytes in shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}))


def prompts(count):
    """Token ids of `count` prompts, all different."""
    return [[1] + [(7 * i + j * 13) % (VOCAB - 24) + 3 for i in range(12 + j % 9)] for j in range(count)]
