"""Weights as llm-compressor writes them for compressed-tensors, and as ModelOpt does.

A Scheme has 8 bits for weights and activations (W8A8): a type ("int" or "float"), a strategy of the weights' scales
("channel", "tensor" or "block"), and activations whose scale is found at run time (dynamic) or is in the checkpoint;
asymmetric: with a zero point; cache: with scales of the KV cache. Four has 4 bits, for weights alone; ModelOpt 4 bits for
activations, too.
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


class Four:
    """4-bit floats, two in a byte, in groups: "nvfp4" with a scale in float8 for each 16 and one for all, "mxfp4" with a power
    of two for each 32. Weights only."""

    VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])

    def __init__(self, kind):
        self.kind, self.group = kind, {"nvfp4": 16, "mxfp4": 32}[kind]

    def config(self):
        """The checkpoint's `quantization_config`."""
        weights = Scheme("float")._arguments(num_bits=4, group_size=self.group, strategy="tensor_group" if self.kind == "nvfp4" else "group",
                                             scale_dtype="torch.float8_e4m3fn" if self.kind == "nvfp4" else "torch.uint8")
        group = dict(targets=["Linear"], weights=weights, input_activations=None, output_activations=None)
        return dict(quant_method="compressed-tensors", format=f"{self.kind}-pack-quantized", quantization_status="compressed",
                    config_groups={"group_0": group}, ignore=["lm_head"], kv_cache_scheme=None, global_compression_ratio=None)

    def tensors(self, name, weight):
        """As Scheme has it."""
        prefix = name.removesuffix("weight")
        rows, columns = weight.shape
        parts = weight.reshape(rows, columns // self.group, self.group)
        scale = parts.abs().amax(dim=2) / self.VALUES[-1]
        made = {}
        if self.kind == "nvfp4":
            most = torch.finfo(torch.float8_e4m3fn).max / scale.max()  # the file has what scales were multiplied by
            made[prefix + "weight_global_scale"] = most.reshape(1)
            made[prefix + "weight_scale"] = stored = (scale * most).to(torch.float8_e4m3fn)
            scale = stored.float() / most
        else:
            exponent = scale.log2().ceil()
            made[prefix + "weight_scale"] = (exponent + 127).to(torch.uint8)
            scale = exponent.exp2()
        parts = (parts / scale[:, :, None]).reshape(rows, columns)
        nearest = (parts.abs()[:, :, None] - self.VALUES).abs().argmin(dim=2) + 8 * (parts < 0)
        made[prefix + "weight_packed"] = (nearest[:, 0::2] + 16 * nearest[:, 1::2]).to(torch.uint8)
        return made


class ModelOpt(Four):
    """ModelOpt's NVFP4: other names, the inverse of the factor, and one for the activations, whose groups are scaled at run time."""

    def __init__(self):
        super().__init__("nvfp4")

    def config(self):
        """The checkpoint's `quantization_config`."""
        part = dict(dynamic=False, num_bits=4, type="float", group_size=self.group)
        group = dict(targets=["Linear"], weights=part, input_activations=part)
        return dict(quant_method="modelopt", quant_algo="NVFP4", config_groups={"group_0": group}, ignore=["lm_head"],
                    producer=dict(name="modelopt"))

    def tensors(self, name, weight):
        """As Scheme has it."""
        prefix = name.removesuffix("weight")
        made = super().tensors(name, weight)
        return {name: made[prefix + "weight_packed"], prefix + "weight_scale": made[prefix + "weight_scale"],
                prefix + "weight_scale_2": (1 / made[prefix + "weight_global_scale"]).reshape(()),
                prefix + "input_scale": 8 / (self.VALUES[-1] * torch.finfo(torch.float8_e4m3fn).max)}
