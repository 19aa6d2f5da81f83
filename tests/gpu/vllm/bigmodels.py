"""Large random checkpoints in bf16: slices of one random block, written by several threads without holding the model.

An 8B's shape is Qwen3-8B's: 36 layers of 4096, 16.38 GB. Sizes from 8 GiB on have a 27B's layers: 64 of 5120 at 54 GiB, fewer
or more at another size; smaller ones, for rehearsals, have layers of 512. Their outputs are noise, but every byte decides them.
"""

import json
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import models

SHARD_BYTES = 4 << 30
_QWEN3 = {**models.SMALL, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128}
EIGHT = {**_QWEN3, "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
         "num_attention_heads": 32, "num_key_value_heads": 8}


def size(config):
    """Bytes of its weights."""
    return sum(2 * torch.Size(shape).numel() for _, shape in models.shapes(config))


def of_size(gib):
    """The configuration with so many GiB of weights, to about one layer."""
    if gib >= 8:
        shape = {"vocab_size": 151936, "hidden_size": 5120, "intermediate_size": 21760, "num_attention_heads": 64}
    else:
        shape = {"vocab_size": 2048, "hidden_size": 512, "intermediate_size": 2176, "num_attention_heads": 8}
    config = {**_QWEN3, **shape, "num_key_value_heads": 8, "num_hidden_layers": 0}
    around = size(config)
    layer = size({**config, "num_hidden_layers": 1}) - around
    return {**config, "num_hidden_layers": max(1, round((gib * (1 << 30) - around) / layer))}


def make(folder, config):
    """Writes a checkpoint into `folder`, unless this one is there, and returns the folder."""
    folder, text = Path(folder), json.dumps(config, indent=1)
    if (folder / "config.json").exists() and (folder / "config.json").read_text() == text:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").unlink(missing_ok=True)
    _write(folder, config)
    (folder / "config.json").write_text(text)
    return folder


def _shards(config):
    shard, filled = [], 0
    for name, shape in models.shapes(config):
        nbytes = 2 * torch.Size(shape).numel()
        if shard and filled + nbytes > SHARD_BYTES:
            yield shard
            shard, filled = [], 0
        shard.append((name, shape, nbytes))
        filled += nbytes
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


def _write(folder, config):
    largest = max(torch.Size(shape).numel() for _, shape in models.shapes(config))
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
