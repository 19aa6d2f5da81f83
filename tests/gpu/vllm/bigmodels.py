"""Large random checkpoints in bf16, written as models.py writes "big".

An 8B's shape is Qwen3-8B's: 36 layers of 4096, 16.38 GB. Sizes from 8 GiB on have a 27B's layers: 64 of 5120 at 54 GiB, fewer
or more at another size; smaller ones, for rehearsals, have layers of 512. Their outputs are noise, but every byte decides them.
"""

import json
from pathlib import Path

import torch

import models

EIGHT = {**models._SMALL, **models.KINDS["big"]}


def size(config):
    """Bytes of its weights."""
    return sum(2 * torch.Size(shape).numel() for _, shape in models._shapes(config))


def of_size(gib):
    """The configuration with so many GiB of weights, to about one layer."""
    if gib >= 8:
        shape = {"vocab_size": 151936, "hidden_size": 5120, "intermediate_size": 21760, "num_attention_heads": 64}
    else:
        shape = {"vocab_size": 2048, "hidden_size": 512, "intermediate_size": 2176, "num_attention_heads": 8}
    config = {**EIGHT, **shape, "num_hidden_layers": 0}
    around = size(config)
    layer = size({**config, "num_hidden_layers": 1}) - around
    return {**config, "num_hidden_layers": max(1, round((gib * (1 << 30) - around) / layer))}


def make(folder, config):
    """Writes a checkpoint into `folder`, unless this one is there, and returns the folder."""
    folder, text = Path(folder), json.dumps(config, indent=1)
    if (folder / "config.json").exists() and (folder / "config.json").read_text() == text:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for old in [folder / "config.json", *folder.glob("*.safetensors")]:
        old.unlink(missing_ok=True)
    models._write_big(folder, config)
    (folder / "config.json").write_text(text)
    return folder
