"""Compressed-tensors: what our own rebuild leaves is what vLLM's post-processing leaves, on every layer.

Proven on whole models by what they are made of, with the kernels of a GPU and without a forward pass (forced.py). Tokens
are for a run on a card. On the CPU platform itself vLLM packs such weights, and they are refused.
"""

import importlib.util
import sys
import time
from types import SimpleNamespace

import pytest

import harness
import models
from conftest import SETTLED

GPU = harness.ROOT / "tests" / "gpu" / "vllm"


@pytest.fixture(scope="module")
def card():
    """The checkpoints of the run on a card."""
    sys.path.append(str(GPU))
    spec = importlib.util.spec_from_file_location("card_models", GPU / "models.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


INT8, FP8 = "CutlassInt8ScaledMMLinearKernel", "CutlassFP8ScaledMMLinearKernel"
# What the scheme is made of, changes of the model, the kernel.
VARIANTS = {
    "int8": ({"type": "int"}, {}, INT8),
    "int8 static": ({"type": "int", "dynamic": False}, {}, INT8),
    "int8 asymmetric": ({"type": "int", "symmetric": False}, {}, INT8),
    "int8 static asymmetric": ({"type": "int", "dynamic": False, "symmetric": False}, {}, INT8),
    "int8 tensor": ({"type": "int", "strategy": "tensor"}, {}, INT8),
    "fp8": ({"type": "float"}, {}, FP8),
    "fp8 tensor": ({"type": "float", "strategy": "tensor"}, {}, FP8),
    "fp8 static": ({"type": "float", "strategy": "tensor", "dynamic": False, "cache": True}, {}, FP8),
    # Columns that the kernel wants as multiples of 16 are filled up, and cut off again from what it has computed.
    "fp8 padded": ({"type": "float"}, {"intermediate_size": 504}, FP8),
    "fp8 tensor padded": ({"type": "float", "strategy": "tensor"}, {"intermediate_size": 500}, FP8),
    "fp8 block": ({"type": "float", "strategy": "block"}, {}, "CutlassFp8BlockScaledMMKernel"),
    "fp8 block triton": ({"type": "float", "strategy": "block"}, {}, "TritonFp8BlockScaledMMKernel"),
    "fp8 block deep": ({"type": "float", "strategy": "block"}, {}, "DeepGemmFp8BlockScaledMMKernel"),
    "fp8 block flash": ({"type": "float", "strategy": "block"}, {}, "FlashInferFp8DeepGEMMDynamicBlockScaledKernel"),
    "nvfp4": ("nvfp4", {}, "MarlinNvFp4LinearKernel"),
    "mxfp4": ("mxfp4", {}, "MarlinMxFp4LinearKernel"),
    "int8 stamped": ({"type": "int"}, {}, INT8),
}


@pytest.fixture(scope="module")
def checkpoints(card, folder):
    """The folder of each variant's checkpoint."""
    made = {}
    for variant, (scheme, changes, _) in VARIANTS.items():
        path = folder / "models" / variant.replace(" ", "-")
        scheme = card.Four(scheme) if isinstance(scheme, str) else card.Scheme(**scheme)
        made[variant] = str(card.make_compressed(path, scheme, num_hidden_layers=2, **changes))
    time.sleep(SETTLED)
    return made


@pytest.fixture(scope="module")
def compared(checkpoints, run_job, broker):
    """compared(variant, without): what forced.compare() says of it."""

    def get(variant, without=None):
        return run_job("forced:compare", checkpoints[variant], VARIANTS[variant][2], without)

    return get


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "int8 stamped"])
def test_an_attached_model_is_made_of_the_same(compared, variant):
    said = compared(variant)
    assert said["differences"] == []
    assert said["how"] == "published" and said["shared"] > 1 << 20
    assert [layer.split()[2] for layer in said["layers"]] == [VARIANTS[variant][2]]


@pytest.mark.parametrize(
    "variant, attribute, has",
    [
        ("int8", "qkv_proj.weight.(is)", "ModelWeightParameter"),
        ("fp8", "qkv_proj.weight._input_dim", "1"),
        ("fp8 tensor padded", "gate_up_proj.scheme.fp8_linear.logical_output_size", "None"),
        ("nvfp4", "qkv_proj.weight_scale.(is)", "GroupQuantScaleParameter"),
        ("fp8 block deep", "down_proj.deep_gemm_warmup_provider.(class)", "missing"),
    ],
)
def test_without_our_step_the_difference_is_seen(compared, variant, attribute, has):
    found = [text for text in compared(variant, "step")["differences"] if f"{attribute}" in text]
    assert len(found) == 2 and all(has in text.split(" != ")[1] for text in found)  # one in each layer


def test_without_our_steps_post_processing_runs_twice(compared):
    """Also where vLLM's class promises that it does not."""
    with pytest.raises(AssertionError, match="has no attribute 'k_scale'"):
        compared("fp8 static", "kv_cache")
    assert any("qkv_proj.weight.(is):" in text for text in compared("int8", "steps")["differences"])


def test_another_kernel_than_the_publishers_is_refused(compared):
    with pytest.raises(AssertionError, match="Refused: ipc_cache: .*published for .*Other, and here it is "):
        compared("int8 stamped", "stamp")


def test_what_the_table_does_not_know_is_refused_by_name(run_job, checkpoints):
    """Another kernel, a class that only has the name, another scheme, mixture of experts, another release; and a promise
    of vLLM's that holds for another back end."""
    said = run_job("forced:refused", checkpoints["int8"], INT8)
    assert said.pop("") is None and said.pop("its back end") is None and len(said) == 9
    for name, reason in said.items():
        assert name in reason and "cannot be rebuilt around shared weights by this plugin with vLLM " in reason


@pytest.mark.parametrize("version, rebuilds", (("0.30.0", False), ("0.32.0", True)))
def test_marlin_of_a_method_that_vllm_rebuilds(monkeypatch, version, rebuilds):
    """In 0.30 it wants a workspace that nobody would make."""
    import vllm

    from ipc_cache.vllm import refuse

    kernel = type("MarlinNvFp4LinearKernel", (), {})()
    method = type("ModelOptLinearMethod", (), {"supports_pre_processed_weights": True, "kernel": kernel})()
    monkeypatch.setattr(vllm, "__version__", version)
    monkeypatch.setattr(refuse.platform, "is_cpu", lambda: False)
    assert refuse._rebuilds(SimpleNamespace(quant_method=method)) == rebuilds


def test_another_back_end_of_a_mixture_of_experts_is_refused():
    """Which one vLLM takes depends on what is installed; some swap two halves of a weight, whose shape stays."""
    from enum import Enum

    import torch

    from ipc_cache.vllm import rebuild, refuse

    backends = Enum("Backend", ("TRITON", "FLASHINFER_CUTLASS"))
    methods = {
        "UnquantizedFusedMoEMethod": {"unquantized_backend": backends.TRITON, "experts_cls": int},
        "UnquantizedLinearMethod": {},
    }
    model = torch.nn.Sequential(*(torch.nn.Identity() for _ in methods))
    for layer, (name, attributes) in zip(model, methods.items()):
        layer.quant_method = type(name, (), {"__module__": "vllm.made"})()
        vars(layer.quant_method).update(attributes)
    rebuild.stamp(model)
    assert refuse.check_kernels(model) is None
    model[0].quant_method.unquantized_backend = backends.FLASHINFER_CUTLASS
    with pytest.raises(refuse.Refused, match="unquantized_backend=TRITON, and here it is .*FLASHINFER_CUTLASS"):
        refuse.check_kernels(model)
    del model[0].ipc_cache_kernel
    with pytest.raises(refuse.Refused, match="published for None"):
        refuse.check_kernels(model)


SCHEMES = {
    "int8": ("CompressedTensorsW8A8Int8 channel dynamic", INT8),
    "fp8c": ("CompressedTensorsW8A8Fp8 channel dynamic", FP8),
    "nvfp4": ("CompressedTensorsW4A4Fp4", "MarlinNvFp4LinearKernel"),
    "mxfp4": ("CompressedTensorsW4A4Mxfp4", "MarlinMxFp4LinearKernel"),
}


@pytest.mark.parametrize("kind", SCHEMES)
def test_the_checkpoints_of_the_run_on_a_card(card, run_job, folder, kind):
    """vLLM reads the scheme that is meant out of them."""
    path, (scheme, kernel) = card.make(folder / "models" / f"card-{kind}", kind), SCHEMES[kind]
    assert run_job("forced:schemes", str(path), kernel) == [scheme]


def test_the_checkpoint_that_is_refused_on_a_card(card, run_job, folder, broker):
    """vLLM loads ModelOpt's NVFP4 and lays it out by Marlin; as 0.30 does that, it cannot be shared."""
    path = card.make(folder / "models" / "card-modelopt", "modelopt")
    time.sleep(SETTLED)
    said, tensors = run_job("forced:published_as", str(path), "MarlinNvFp4LinearKernel", "0.30.0")
    assert tensors["weight"] == "torch.int32" and "weight_global_scale" in tensors and "weight_scale_2" not in tensors
    assert (
        "qkv_proj: ModelOptLinearMethod with MarlinNvFp4LinearKernel cannot be rebuilt around shared weights by this "
        "plugin with vLLM 0.30.0; use --load-format auto for this model" in said
    )
    assert broker.of(path) == []


def test_on_the_cpu_they_are_refused(start, checkpoints):
    """There vLLM packs them. They run as ever with its own loader."""
    path = checkpoints["int8"]
    with pytest.raises(
        harness.EngineFailed,
        match="CompressedTensorsLinearMethod with CompressedTensorsW8A8Int8 with "
        "CPUInt8ScaledMMLinearKernel cannot be rebuilt around shared weights on the CPU",
    ):
        start(path, extra={"on_miss": "publish"}, dtype="bfloat16")
    with start(path, "auto", dtype="bfloat16") as engine:
        assert len(engine.generate(prompts=models.prompts(1), tokens=4)[0]["tokens"]) == 4
