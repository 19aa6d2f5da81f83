"""Weights as llm-compressor writes them for compressed-tensors, 8 bits for weights and activations (W8A8).

A scheme says type ("int" or "float"), strategy of the weights' scales ("channel", "tensor" or "block"), and whether the
activations' scale is found at run time ("dynamic") or in the checkpoint; asymmetric: with a zero point; cache: scales of
the KV cache in the checkpoint.
"""

from dataclasses import dataclass

import torch

BLOCK = 128


@dataclass(frozen=True)
class Scheme:
    type: str
    strategy: str = "channel"
    dynamic: bool = True
    symmetric: bool = True
    cache: bool = False

    def config(self):
        """The checkpoint's `quantization_config`."""
        block = self.strategy == "block"
        inputs = "group" if block else "token" if self.dynamic else "tensor"
        weights = self._arguments(strategy=self.strategy, block_structure=[BLOCK, BLOCK] if block else None)
        activations = self._arguments(strategy=inputs, dynamic=self.dynamic, symmetric=self.symmetric, group_size=BLOCK if block else None)
        cache = dict(num_bits=8, type="float", strategy="tensor", symmetric=True, dynamic=False) if self.cache else None
        group = dict(targets=["Linear"], weights=weights, input_activations=activations, output_activations=None)
        return dict(quant_method="compressed-tensors", format="int-quantized" if self.type == "int" else "float-quantized",
                    quantization_status="compressed", config_groups={"group_0": group}, ignore=["lm_head"], kv_cache_scheme=cache,
                    global_compression_ratio=None)

    def _arguments(self, **more):
        return dict(num_bits=8, type=self.type, symmetric=True, dynamic=False, group_size=None, block_structure=None,
                    actorder=None, observer="minmax", observer_kwargs={}) | more

    def tensors(self, name, weight):
        """Those that stand for the matrix `name`, which ends in ".weight"."""
        prefix = name.removesuffix("weight")
        values, scale = self._quantized(weight)
        made = {name: values, prefix + "weight_scale": scale.to(torch.bfloat16)}
        if not self.dynamic:
            made[prefix + "input_scale"] = torch.tensor([0.02 + len(prefix) / 1000])
            if not self.symmetric:
                made[prefix + "input_zero_point"] = torch.tensor([len(prefix) % 7 - 3], dtype=torch.int8)
        if self.cache and prefix.endswith((".k_proj.", ".v_proj.")):
            at, part = prefix.rsplit(".", 2)[:2]
            made[f"{at}.{part[0]}_scale"] = torch.tensor([0.5 + len(prefix) / 100])
        return made

    def _quantized(self, weight):
        """The values in 8 bits, and the scale of each row, block or all of them."""
        rows, columns = weight.shape
        high, wide = {"channel": (1, columns), "tensor": (rows, columns), "block": (BLOCK, BLOCK)}[self.strategy]
        parts = weight.reshape(rows // high, high, columns // wide, wide)
        kind = torch.int8 if self.type == "int" else torch.float8_e4m3fn
        most = torch.iinfo(kind).max if self.type == "int" else torch.finfo(kind).max
        scale = (parts.abs().amax(dim=(1, 3), keepdim=True) / most).to(torch.bfloat16).float()
        values = (parts / scale).clamp(-most, most)
        values = (values.round() if self.type == "int" else values).to(kind)
        scale = scale.reshape(rows // high, columns // wide)
        return values.reshape(rows, columns), scale.reshape(1) if self.strategy == "tensor" else scale
