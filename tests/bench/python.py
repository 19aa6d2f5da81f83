"""Attaching and binding in Python, against the C library and safetensors, in one run, with where the time goes.

    make bench-python [BENCH='--bytes 2147483648 --tensors 500 --rounds 50']

A checkpoint of that many tensors is written, loaded, and attached to `rounds` times; C is `ipc-cache attach --repeat`. All
figures are medians of one machine at one time: compare them with each other only.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import ipc_cache
from ipc_cache import client, tensors, weights
from ipc_cache.loader import program
from ipc_cache.module import bind_module

clock = time.perf_counter


def checkpoint(path, nbytes, count):
    each = nbytes // count // 512 * 512
    names = [f"model.layers.{i // 9}.self_attn.proj{i % 9}.weight" for i in range(count)]
    blank = torch.zeros(each, dtype=torch.uint8)
    save_file(
        {name: blank.clone().fill_(i % 251).view(torch.bfloat16).view(256, -1) for i, name in enumerate(names)}, path
    )
    return names, torch.Size((256, each // 512))


def module_of(names, shape):
    """A module with those parameters, on meta."""
    root = nn.Module()
    for name in names:
        part = root
        *path, leaf = name.split(".")
        for step in path:
            if not hasattr(part, step):
                part.add_module(step, nn.Module())
            part = getattr(part, step)
        part.register_parameter(leaf, nn.Parameter(torch.empty(shape, dtype=torch.bfloat16, device="meta"), False))
    return root


def phases(path, rounds):
    """Microseconds of each part of an attach that ends with all tensors there."""
    found = {"connect": [], "attach, map": [], "views": [], "together": []}
    for _ in range(rounds):
        begin = clock()
        connection = client.Connection(None, 10, None)
        connected = clock()
        attached = weights.attach_over(connection, path, owned=True)
        mapped = clock()
        views = tensors.build(attached._model, attached.manifest)
        end = clock()
        for name, seconds in zip(found, (connected - begin, mapped - connected, end - mapped, end - begin)):
            found[name].append(seconds * 1e6)
        del views
        attached.close()
    return {name: statistics.median(values) for name, values in found.items()}


def binding(path, names, shape, rounds):
    """Microseconds of attaching and exchanging every parameter of a module, which is built before."""
    found = []
    for _ in range(rounds):
        module = module_of(names, shape)
        begin = clock()
        attached = ipc_cache.attach(path)
        bind_module(module, attached)
        found.append((clock() - begin) * 1e6)
        attached.close()
    return statistics.median(found)


def in_c(path, rounds):
    done = subprocess.run(
        [program("ipc-cache"), "attach", "--json", "--repeat", str(rounds), path], stdout=subprocess.PIPE, check=True
    )
    return {name: times["p50"] for name, times in json.loads(done.stdout)["times_us"].items()}


def reading(path, rounds, touch):
    """Microseconds of safetensors, of the file in the page cache; touch: one byte of each page is read too."""
    found = []
    for _ in range(rounds):
        begin = clock()
        loaded = load_file(path)
        if touch:
            for tensor in loaded.values():
                tensor.view(torch.uint8).flatten()[::4096].sum()
        found.append((clock() - begin) * 1e6)
        del loaded
    return statistics.median(found)


def imports():
    """Milliseconds of `import ipc_cache` in a fresh process."""
    code = "import time; a = time.perf_counter(); import ipc_cache; print((time.perf_counter() - a) * 1e3)"
    found = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(9)]
    return statistics.median(found)


def report(arguments, path):
    names, shape = checkpoint(path, arguments.bytes, arguments.tensors)
    then = time.time() - 3600
    os.utime(path, (then, then))
    time.sleep(0.1)
    ipc_cache.load(path)
    phases(path, 5)  # warm
    c, python = in_c(path, 200), phases(path, arguments.rounds)
    bound = binding(path, names, shape, arguments.rounds)
    lazy, touched = reading(path, 11, False), reading(path, 5, True)
    fast = "one call" if tensors._fast() is not None else "as_strided"
    print(
        f"torch {torch.__version__}, safetensors {safetensors.__version__}, {os.cpu_count()} processors, "
        f"load {os.getloadavg()[0]:.1f}; {len(names)} tensors, {arguments.bytes / 2**30:.2f} GiB; views by {fast}"
    )
    print(f"import ipc_cache                    {imports():12.1f} ms")
    for name in ("connect", "attach", "map", "total"):
        print(f"C: {name:32s} {c[name]:12.0f} us")
    for name, value in python.items():
        print(f"Python: {name:27s} {value:12.0f} us")
    print(f"Python: attach, bind a module       {bound:12.0f} us")
    print(f"safetensors.torch.load_file         {lazy:12.0f} us")
    print(f"  and one byte of each page         {touched:12.0f} us")
    together = python["together"]
    print(
        f"Python / C {together / c['total']:.1f}; load_file / Python {lazy / together:.0f}, with pages touched "
        f"{touched / together:.0f}; load_file / attach and bind a module {lazy / bound:.0f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=2 << 30)
    parser.add_argument("--tensors", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=50)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["IPC_CACHE_DIR"] = os.path.join(folder, "broker")
        broker = subprocess.Popen(
            [program("ipc-cached"), "--dir", os.environ["IPC_CACHE_DIR"]], stderr=subprocess.DEVNULL
        )
        try:
            while True:
                try:
                    ipc_cache.models()
                    break
                except ipc_cache.NoBroker:
                    time.sleep(0.01)
            report(arguments, os.path.join(folder, "model.safetensors"))
        finally:
            broker.terminate()
            broker.wait()


if __name__ == "__main__":
    main()
