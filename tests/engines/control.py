"""A loader of the tests' own: vLLM's ordinary load, with the matrix product that attached engines use.

Attached engines on the CPU compute with torch's matrix product instead of packed oneDNN. An ordinary load with the same
product is what they must equal to the last bit. Nothing of the plugin is used here.
"""

import copy
import sys
from contextlib import contextmanager

import torch
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

FORMAT = "control"
PACKER = "dispatch_cpu_unquantized_gemm"


def torch_product(layer, remove_weight):
    layer.cpu_linear = torch.nn.functional.linear


@contextmanager
def packing_off():
    import vllm.model_executor.layers.utils  # noqa: F401

    places = [m for n, m in list(sys.modules.items()) if n.startswith("vllm.") and PACKER in getattr(m, "__dict__", ())]
    originals = [getattr(m, PACKER) for m in places]
    for module in places:
        setattr(module, PACKER, torch_product)
    try:
        yield
    finally:
        for module, original in zip(places, originals):
            setattr(module, PACKER, original)


class ControlLoader(DefaultModelLoader):
    def __init__(self, load_config):
        ordinary = copy.copy(load_config)
        ordinary.load_format = "auto"
        super().__init__(ordinary)

    def load_model(self, *args, **kwargs):
        with packing_off():
            return super().load_model(*args, **kwargs)


def register():
    """Entry point of group vllm.general_plugins; see plugin_folder() in harness.py."""
    register_model_loader(FORMAT)(ControlLoader)
