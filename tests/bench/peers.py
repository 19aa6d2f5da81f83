"""One load by another loader, in a process of its own: peers.py NAME FILE... prints seconds, or why it does not run.

Imports are not timed; opening the files and having every tensor in memory, read, is.
"""
import glob
import os
import sys
import time


def touch(tensor):
    tensor.view(-1)[::2048].sum()


def safetensors_mapped(files):
    """As load_file gives it: a mapping of the page cache, in which nothing was moved."""
    from safetensors.torch import load_file
    start = time.perf_counter()
    for file in files:
        for tensor in load_file(file).values():
            touch(tensor)
    return time.perf_counter() - start


def safetensors_copied(files):
    """Into memory of its own, as the others do."""
    from safetensors.torch import load_file
    start = time.perf_counter()
    kept = [[tensor.clone() for tensor in load_file(file).values()] for file in files]
    del kept
    return time.perf_counter() - start


def fastsafetensors(files):
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup
    start = time.perf_counter()
    loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True)
    loader.add_filenames({0: files})
    buffers = loader.copy_files_to_device()
    for key in list(buffers.key_to_rank_lidx):
        buffers.get_tensor(key)
    return time.perf_counter() - start


def runai(files):
    from runai_model_streamer import SafetensorsStreamer
    start = time.perf_counter()
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(files)
        for _name, _tensor in streamer.get_tensors():
            pass
    return time.perf_counter() - start


def instanttensor(files):
    from instanttensor import safe_open
    start = time.perf_counter()
    with safe_open(files, framework="pt", device="cpu") as opened:
        for _name, _tensor in opened.tensors():
            pass
    return time.perf_counter() - start


PEERS = {"safetensors-mapped": safetensors_mapped, "safetensors": safetensors_copied, "fastsafetensors": fastsafetensors,
         "runai-model-streamer": runai, "instanttensor": instanttensor}

if __name__ == "__main__":
    paths = sorted(glob.glob(os.path.join(sys.argv[2], "*.safetensors")))
    try:
        print(f"seconds {PEERS[sys.argv[1]](paths):.6f}")
    except Exception as error:  # pylint: disable=broad-except
        print(f"does not run: {type(error).__name__}: {str(error)[:150]}".replace("\n", " "))
