"""Models in the memory of a real GPU, through torch; skipped, and said so, where there is none.

On another machine with a GPU: copy the tree with its build folder, and run
    PYTHONPATH=python IPC_CACHE_LIBRARY=build/libipc_cache.so python3 -m pytest -s tests/torch/test_card.py
"""

import gc
import time
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import ipc_cache
from ipc_cache import engine

from harness import age, run_python
from same import assert_same
from test_checkpoints import every_type

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def assert_same_values(have, want, name):
    assert have.is_cuda, name
    assert_same(have.cpu(), want.cpu(), name)


@pytest.mark.parametrize("origin", ["cpu", "cuda"])
def test_every_type(broker, origin, views):
    tensors = {name: tensor.to(origin) for name, tensor in every_type().items()}
    tensors["turned"] = torch.randn(5, 7, device=origin).t()
    tensors["tied"] = tensors["turned"]
    ipc_cache.publish(tensors, {"model": "x"}, name="x", device="cuda:0")
    with ipc_cache.attach("x") as weights:
        assert weights.device == torch.device("cuda", 0) and weights["tied"] is weights["turned"]
        for name, tensor in tensors.items():
            assert_same_values(weights[name], tensor, name)
        assert weights["turned"].stride() == tensors["turned"].stride()


def test_a_loaded_checkpoint(broker, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({f"layer.{i}.weight": torch.randn(100 + i, 33) for i in range(50)}, path)
    ipc_cache.load(age(path), device="cuda:0")
    with ipc_cache.attach(path) as weights:
        want = load_file(path)
        assert list(weights) == list(want)
        for name, tensor in want.items():
            assert_same_values(weights[name], tensor, name)
        assert all(w.data_ptr() % 16 == 0 for w in weights.values())


def test_from_a_gpu_to_the_host(broker):
    tensor = torch.randn(3000, 7000, device="cuda")
    ipc_cache.publish({"w": tensor[5:].t()}, {"model": "x"}, name="x")
    with ipc_cache.attach("x") as weights:
        assert torch.equal(weights["w"].cuda(), tensor[5:].t()) and weights["w"].stride() == (1, 7000)


def test_tensors_outlive_lease_and_model(broker):
    ipc_cache.publish({"w": torch.full((1 << 20,), 3.0)}, {"model": "x"}, name="x", device="cuda:0")
    with ipc_cache.attach("x") as weights:
        kept = weights["w"]
    ipc_cache.evict("x")
    gc.collect()
    assert kept.sum() == 3 << 20
    free = torch.cuda.mem_get_info()[0]
    del kept
    gc.collect()
    assert torch.cuda.mem_get_info()[0] > free


def test_suspend_and_resume(broker):
    ipc_cache.publish({"w": torch.arange(1 << 20)}, {"model": "x"}, name="x", device="cuda:0")
    with ipc_cache.attach("x") as weights:
        view, before = weights["w"], weights["w"].data_ptr()
        weights.suspend()
        weights.resume()
        assert view.data_ptr() == before and torch.equal(view.cpu(), torch.arange(1 << 20))


def test_a_write_is_an_error_of_the_writer(broker):
    ipc_cache.publish({"w": torch.ones(1024)}, {"model": "x"}, name="x", device="cuda:0")
    out, _ = run_python(
        """
        import os, sys
        import torch, ipc_cache
        weights = ipc_cache.attach("x")
        try:
            weights["w"].zero_()
            torch.cuda.synchronize()
        except RuntimeError as error:
            print(str(error).splitlines()[0])
        sys.stdout.flush()
        os._exit(0)  # nothing can be cleaned up in a context that is broken
        """,
        broker.directory,
    )
    assert "CUDA error" in out
    with ipc_cache.attach("x") as weights:
        assert weights["w"].sum() == 1024


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.register_buffer("table", torch.arange(64.0), persistent=False)
        self.scale = torch.tensor(1.0)
        self.scale_cpu = torch.tensor(1.0, device="cpu")
        self.kernel = SimpleNamespace(weight=self.linear.weight)

    def forward(self, x):
        return self.linear(x) * self.scale + self.table


def test_exporting_and_binding(broker):
    with torch.device("cuda"):
        model = Net()
    since = engine.snapshot(model)
    model.scale.fill_(2.0)
    model.scale_cpu.fill_(0.5)
    engine.publish_export(engine.export(model, since=since), {"model": "x"}, name="x", device="cuda:0")
    with engine.skeleton("cuda"):
        made = Net()
    with ipc_cache.attach("x") as weights:
        bound = engine.bind(made, weights)
        engine.check_no_meta(made)
        x = torch.randn(3, 64, device="cuda")
        assert torch.equal(made(x), model(x)) and made.kernel.weight is made.linear.weight
        assert made.scale_cpu.device.type == "cpu" and made.scale_cpu == 0.5 and bound.copied == ["scale_cpu"]


def test_how_long_it_takes(broker):
    """Prints; asserts nothing on time."""
    tensors = {f"t{i}": torch.zeros(4 << 20, dtype=torch.uint8) for i in range(500)}
    ipc_cache.publish(tensors, {"model": "x"}, name="x", device="cuda:0")
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        weights = ipc_cache.attach("x")
        attached = time.perf_counter()
        views = dict(weights)
        times.append((time.perf_counter() - begin, attached - begin))
        assert len(views) == 500
        weights.close()
        del views
    together, attach = sorted(times)[10]
    print(
        f"\n500 tensors, 2 GiB on {torch.cuda.get_device_name()}: attach {attach * 1e3:.2f} ms, with all views "
        f"{together * 1e3:.2f} ms"
    )
