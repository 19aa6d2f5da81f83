"""Plain PyTorch: a module whose parameters are shared weights.

    ipc-cached &
    python examples/pytorch.py

The first run saves a checkpoint and loads it into the broker; every process after that attaches in a millisecond.
"""

import argparse
import os
import sys
import tempfile
import time

import torch
from safetensors.torch import save_file
from torch import nn

import ipc_cache


def build() -> nn.Module:
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(32)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default=os.path.join(tempfile.gettempdir(), "ipc-cache-example.safetensors"))
    path = parser.parse_args().checkpoint

    if not os.path.exists(path):
        torch.manual_seed(0)
        save_file(build().state_dict(), path)
    try:
        loaded = ipc_cache.load(path)  # does nothing if the same files are resident already
    except ipc_cache.NoBroker as error:
        sys.exit(str(error))
    print(f"resident: {loaded.name}, {loaded.tensors} tensors, {loaded.nbytes / 2**20:.0f} MiB")

    with torch.device("meta"):
        module = build()  # the shape of it, and no memory
    begin = time.perf_counter()
    weights = ipc_cache.attach_module(module, path)
    print(f"attached and bound in {(time.perf_counter() - begin) * 1e3:.1f} ms, lease {weights.lease}")

    with torch.no_grad():
        print(f"output: {module(torch.ones(1, 1024)).norm():.6f}")
    weights.detach()  # the broker may evict the model now; what is bound here stays valid


if __name__ == "__main__":
    main()
