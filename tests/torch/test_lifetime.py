"""Memory and leases: tensors outlive what they came from, in any order, in threads and forked children; nothing leaks."""

import gc
import os
import pickle
import random
import signal
import threading

import pytest
import torch
from torch import nn

import ipc_cache

from harness import PATIENCE, forked, run_python, running, start_python, wait_until
from same import bits

MAPPED = "ipc-cache-segment"


def mapped():
    with open("/proc/self/maps") as file:
        return file.read().count(MAPPED)


@pytest.fixture
def model(broker):
    tensors = {f"layer.{i}.weight": torch.full((16, 8), float(i)) for i in range(20)}
    tensors["half"] = torch.ones(7, dtype=torch.float16)
    ipc_cache.publish(tensors, {"model": "x"}, name="x")
    gc.collect()
    assert mapped() == 0
    return tensors


def test_any_order_of_garbage(model):
    rng = random.Random(1)
    for _ in range(30):
        weights = ipc_cache.attach("x")
        things = [weights, weights.manifest, *weights.values(), weights.dlpack("half"), weights.numpy("half")]
        things.append(nn.Parameter(weights["layer.3.weight"], requires_grad=False))
        things.append(weights["layer.5.weight"][3:].t())
        things.append(iter(weights.items()))
        del weights
        assert mapped() == 1
        rng.shuffle(things)
        while things:
            things.pop()
        gc.collect()
        assert mapped() == 0


def test_cycles(model):
    weights = ipc_cache.attach("x")
    knot = [weights, weights["half"]]
    knot.append(knot)
    weights["half"].knot = knot
    del weights, knot
    gc.collect()
    assert mapped() == 0
    wait_until(lambda: ipc_cache.models()[0].leases == 0, "the lease to end")


def test_tensors_outlive_weights_lease_and_model(model, broker):
    with ipc_cache.attach("x") as weights:
        kept = dict(weights)
    ipc_cache.evict("x")
    assert mapped() == 1
    for name, tensor in model.items():
        assert bits(kept[name]) == bits(tensor)
    one = kept["half"]
    del kept, tensor
    gc.collect()
    assert mapped() == 1 and one.sum() == 7
    del one
    gc.collect()
    assert mapped() == 0


def test_many_attaches_leak_nothing(model):
    def fds():
        return len(os.listdir("/proc/self/fd"))

    def resident_kib():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4

    for round_ in range(3):
        for _ in range(300):
            with ipc_cache.attach("x") as weights:
                assert weights["layer.7.weight"][0, 0] == 7
        gc.collect()
        if round_ == 0:
            before, memory = fds(), resident_kib()
    assert fds() == before and mapped() == 0
    assert resident_kib() < memory + 4096


def test_threads_attach_and_read(model):
    failed = []

    def work(seed):
        rng = random.Random(seed)
        try:
            for _ in range(30):
                with ipc_cache.attach("x") as weights:
                    i = rng.randrange(20)
                    assert weights[f"layer.{i}.weight"].mean() == i
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [] and mapped() == 0


def test_threads_share_weights_while_one_closes_them(model):
    for _ in range(20):
        weights, failed = ipc_cache.attach("x"), []

        def work(weights=weights, failed=failed):
            try:
                for name in weights:
                    weights[name].sum()
                    _ = weights.lease
            except ipc_cache.Usage:
                pass  # closed
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        weights.close()
        for thread in threads:
            thread.join()
        assert failed == []


def test_fork_while_another_thread_works(model):
    """What that thread holds, nobody lets go of in the child; and nobody waits for it in the parent."""
    weights = ipc_cache.attach("x")
    works, ends = threading.Event(), threading.Event()

    def work():
        with weights.held():
            works.set()
            ends.wait(PATIENCE)

    thread = threading.Thread(target=work)
    thread.start()
    works.wait(PATIENCE)

    def child():
        assert weights["layer.2.weight"].sum() == 256
        weights.close()

    forked(child)
    assert weights["layer.1.weight"].sum() == 128 and mapped() > 0
    weights.close()
    assert not weights.open and weights.lease == "ended" and mapped() > 0  # for the thread
    with pytest.raises(ipc_cache.Usage):
        weights.raw("half")
    ends.set()
    thread.join()
    gc.collect()
    assert mapped() == 0


def test_garbage_that_is_collected_while_its_connection_waits(model, monkeypatch):
    """A long request is another thread's than the one that has the connection, and weights may end there."""
    call = ipc_cache.client.call

    def collects(*arguments):
        gc.collect()
        return call(*arguments)

    with ipc_cache.Client() as client:
        weights = client.attach("x")
        weights.detach()
        weights.itself = weights
        gc.disable()
        try:
            del weights
            monkeypatch.setattr(ipc_cache.client, "call", collects)
            with pytest.raises(ipc_cache.Timeout):
                client.attach("another", wait=0.5)
        finally:
            gc.enable()
        assert mapped() == 0


def test_closed_weights_wait_for_nobody(model):
    with ipc_cache.Client() as client:
        weights = client.attach("x")
        weights.close()
        with client.connection.lock:  # as a request of another thread
            answers = []
            thread = threading.Thread(target=lambda: answers.append((weights.lease, weights.detach())))
            thread.start()
            thread.join(PATIENCE)
            assert answers == [("ended", None)]


def test_fork_after_attach(model):
    weights = ipc_cache.attach("x")
    first = weights["layer.1.weight"]

    def child():
        assert first.sum() == 128 and weights["layer.2.weight"].sum() == 256  # views made in the child
        weights.close()
        gc.collect()

    for _ in range(3):
        with forked(child) as finish:
            finish()
    assert weights.lease == "held" and ipc_cache.models()[0].leases == 1
    weights.close()


def test_a_child_that_ends_by_itself(model, broker):
    """An interpreter that ends in a forked child, with everything alive, harms neither itself nor its parent."""
    out, err = run_python(
        """
        import os, sys
        import torch, ipc_cache
        weights = ipc_cache.attach("x")
        kept = list(weights.values())
        pid = os.fork()
        if pid == 0:
            assert kept[3].sum() == 3 * 128
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print(weights.lease, ipc_cache.models()[0].leases)
        """,
        broker.directory,
    )
    assert (out.split(), err) == (["held", "1"], "")


@pytest.mark.parametrize(
    "end",
    [
        "",
        "del weights",
        "weights.close()",
        "del kept",
        "sys.modules.clear()",
        "globals().clear()",
        "import os; os._exit(0)",
    ],
)
def test_the_interpreter_ends(model, broker, end):
    out, err = run_python(
        f"""
        import sys
        import torch, ipc_cache
        ipc_cache.faults.enable()
        weights = ipc_cache.attach("x")
        kept = [*weights.values(), weights.dlpack("half").__dlpack__(), weights.numpy("half")]
        torch.kept = kept[:3]
        {end}
        """,
        broker.directory,
    )
    assert (out, err) == ("", "")
    wait_until(lambda: ipc_cache.models()[0].leases == 0, "the lease to end")


HOLDER = """
    import sys
    import ipc_cache
    weights = ipc_cache.attach("big")  # by numpy: ten processes that import torch take a small machine minutes
    total = sum(int(weights.numpy(name)[::4096].sum(dtype=int)) for name in weights)
    def pss():
        kib = 0
        inside = False
        for line in open("/proc/self/smaps"):
            if "-" in line.split()[0] and not line.split()[0].endswith(":"):
                inside = "ipc-cache-segment" in line
            elif inside and line.startswith("Pss:"):
                kib += int(line.split()[1])
        return kib
    print("attached", total, flush=True)
    for line in sys.stdin:
        print(pss(), flush=True)
"""


def test_ten_processes_share_one_copy_and_may_be_killed(broker, tmp_path):
    """2 GiB, ten readers that have touched every page: the proportional shares sum to one copy."""
    total = 2 << 30
    big = {str(i): torch.full((total // 8,), i + 1, dtype=torch.uint8) for i in range(8)}
    ipc_cache.publish(big, {"model": "big"}, name="big", consume=True)
    processes = [start_python(HOLDER, broker.directory) for _ in range(10)]
    try:
        said = {process.stdout.readline() for process in processes}
        assert said == {f"attached {sum(range(1, 9)) * total // 8 // 4096}\n"}
        assert ipc_cache.models()[0].leases == 10
        shares = []
        for process in processes:
            process.stdin.write("pss\n")
            process.stdin.flush()
        for process in processes:
            shares.append(int(process.stdout.readline()))
        print(
            f"\nPSS of ten processes attached to 2 GiB, in MiB: {[share // 1024 for share in shares]}, "
            f"together {sum(shares) / 1024:.0f}"
        )
        assert sum(shares) <= (total >> 10) * 1.01
        for i, process in enumerate(processes):
            process.send_signal(signal.SIGKILL)
            process.wait()
            wait_until(lambda left=9 - i: ipc_cache.models()[0].leases == left, "the lease of the killed one to end")
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_pickling_copies(model):
    """A tensor that is sent to another process is a copy there, as every tensor is."""
    with ipc_cache.attach("x") as weights:
        again = pickle.loads(pickle.dumps(weights["half"]))
        assert torch.equal(again, weights["half"])
        again[0] = 5
        clone = weights["half"].clone()
        clone.add_(1)


def test_a_write_is_the_end_of_the_writer_only(model, broker):
    _, err = run_python(
        """
        import torch, ipc_cache
        ipc_cache.faults.enable()
        weights = ipc_cache.attach("x")
        weights["layer.4.weight"][2].fill_(1)
        """,
        broker.directory, status=-signal.SIGSEGV,
    )  # fmt: skip
    assert "byte 64 of tensor layer.4.weight" in err
    with ipc_cache.attach("x") as weights:
        assert weights["layer.4.weight"].mean() == 4


def test_private(model):
    with ipc_cache.attach("x", private=True) as mine, ipc_cache.attach("x") as shared:
        mine["half"].zero_()
        assert mine["half"].sum() == 0 and shared["half"].sum() == 7
        parameter = nn.Parameter(mine["layer.2.weight"])
        parameter.sum().backward()
        torch.optim.SGD([parameter], 1.0).step()
        assert parameter.mean() == 1 and shared["layer.2.weight"].mean() == 2


def test_gradients_flow_through_shared_weights(model):
    with ipc_cache.attach("x") as weights:
        x = torch.randn(3, 8, requires_grad=True)
        nn.functional.linear(x, weights["layer.3.weight"]).sum().backward()
        assert torch.equal(x.grad, torch.full((3, 8), 48.0))


def test_inference_mode(model):
    with torch.inference_mode(), ipc_cache.attach("x") as weights:
        assert weights["layer.3.weight"].mean() == 3


def test_a_holder_that_sleeps_keeps_nobody(model, broker):
    with running(
        "import signal, ipc_cache\nw = ipc_cache.attach('x')\nprint('a', flush=True)\nsignal.pause()", broker.directory
    ):
        ipc_cache.evict("x", mode="force", timeout=PATIENCE)  # the holder sleeps for ever
        with pytest.raises(ipc_cache.NotFound):
            ipc_cache.attach("x")
