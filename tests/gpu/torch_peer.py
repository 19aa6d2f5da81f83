"""What Python weight caches do: tensors shared by torch's reduce_tensor, pickled over a socket; times the reader's rebuild."""
import json
import pickle
import subprocess
import sys
import time


def reader():
    import torch  # pylint: disable=import-outside-toplevel
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    times = []
    for _ in range(3):
        size = int.from_bytes(sys.stdin.buffer.read(8), "little")
        data = sys.stdin.buffer.read(size)
        begun = time.perf_counter()
        tensors = [rebuild(*arguments) for rebuild, arguments in pickle.loads(data)]
        times.append((time.perf_counter() - begun) * 1e3)
        assert len(tensors) and tensors[-1].is_cuda
        del tensors
        torch.cuda.ipc_collect()
    print(json.dumps({"p50_ms": sorted(times)[1], "times_ms": times}))


def main():
    import torch  # pylint: disable=import-outside-toplevel
    from torch.multiprocessing.reductions import reduce_tensor  # pylint: disable=import-outside-toplevel
    child = subprocess.Popen([sys.executable, __file__, "reader"], stdin=subprocess.PIPE)
    tensors = [torch.empty(int(sys.argv[2]), dtype=torch.uint8, device="cuda") for _ in range(int(sys.argv[1]))]
    for _ in range(3):
        data = pickle.dumps([reduce_tensor(tensor) for tensor in tensors])
        child.stdin.write(len(data).to_bytes(8, "little") + data)
        child.stdin.flush()
    child.stdin.close()
    sys.exit(child.wait())


if sys.argv[1] == "reader":
    reader()
else:
    main()
