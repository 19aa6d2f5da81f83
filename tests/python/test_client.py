"""Connecting, listing, evicting, waiting; from threads, forked children, and with signals."""

import os
import pickle
import signal
import threading
import time

import pytest

import ipc_cache
from ipc_cache import errors

from harness import forked, running, wait_until


def test_no_broker(tmp_path):
    with pytest.raises(ipc_cache.NoBroker, match=r"start ipc-cached, or set IPC_CACHE_DIR") as caught:
        ipc_cache.models(dir=tmp_path / "nobody")
    assert caught.value.code == 7 and caught.value.errno == 0


def test_a_broker_that_cannot_be_trusted(broker):
    os.chmod(broker.directory, 0o777)
    with pytest.raises(ipc_cache.Refused, match="may be written by others"):
        ipc_cache.models()
    os.chmod(broker.directory, 0o700)


def test_what_is_listed(resident):
    with ipc_cache.attach(resident):
        (model,) = ipc_cache.models()
    assert (model.name, model.state, model.visibility, model.tensors) == ("model", "ready", "owner", 2)
    assert model.key == {"device": "host", "layout": "checkpoint", "model": os.path.realpath(resident)}
    assert [holder.pid for holder in model.holders] == [os.getpid()] and model.leases == 1
    assert model.owner_uid == os.getuid() and len(model.key_id) == 32


def test_stat_and_ping(broker):
    with ipc_cache.Client() as client:
        assert client.ping() > 0
        stat = client.stat()
    assert stat["version"] == ipc_cache.__version__ and stat["pid"] == broker.process.pid and stat["models"] == 0


def test_evicting(resident):
    with ipc_cache.attach(resident) as weights:
        with pytest.raises(ipc_cache.Busy, match=f"process {os.getpid()}"):
            ipc_cache.evict(resident)
        assert ipc_cache.evict(resident, mode="drain") is False
        with pytest.raises(ipc_cache.NotFound):
            ipc_cache.attach(resident)
        assert weights.lease == "held"
    assert ipc_cache.models() == []


def test_evicting_by_force(resident):
    with ipc_cache.attach(resident) as weights:
        ipc_cache.evict("model", mode="force")
        wait_until(lambda: weights.lease == "evicted", "word of the eviction")
        assert weights.dlpack("head.bias") is not None
    with pytest.raises(ipc_cache.Usage, match="sudden"):
        ipc_cache.evict("model", mode="sudden")


def test_waiting_ends_when_the_time_is_over(broker):
    with pytest.raises(ipc_cache.Timeout, match="waited"):
        ipc_cache.attach("nothing", wait=0.2)
    with pytest.raises(ipc_cache.Timeout):
        ipc_cache.attach("nothing", wait=0.05)


def test_waiting_ends_when_the_model_comes(broker, checkpoint):
    timer = threading.Timer(0.3, ipc_cache.load, [checkpoint])
    timer.start()
    with ipc_cache.attach(checkpoint, wait=float("inf")) as weights:
        assert weights.lease == "held"
    timer.join()


def test_cancelling_from_another_thread(broker):
    client = ipc_cache.Client()
    timer = threading.Timer(0.2, client.cancel)
    timer.start()
    with pytest.raises(ipc_cache.Canceled):
        client.attach("nothing", wait=60)
    timer.join()
    with pytest.raises(ipc_cache.Canceled):
        client.models()
    client.close()
    client.cancel()  # harmless
    with pytest.raises(ipc_cache.Usage, match="closed"):
        client.models()


def test_an_interrupt_ends_a_wait(broker):
    code = """
        import signal
        import ipc_cache
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
        print("waiting", flush=True)
        try:
            ipc_cache.attach("nothing", wait=float("inf"))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    with running(code, broker.directory) as process:
        with ipc_cache.Client() as client:
            wait_until(lambda: client.stat()["connections"] == 2, "the child to connect")
        time.sleep(0.2)  # in the call
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline().strip() == "interrupted"


def test_closing_from_another_thread_ends_a_wait(broker):
    client = ipc_cache.Client()
    timer = threading.Timer(0.2, client.close)
    timer.start()
    with pytest.raises(ipc_cache.Canceled):
        client.attach("nothing", wait=60)
    timer.join()


def test_threads_share_a_client(resident):
    failed = []
    with ipc_cache.Client() as client:

        def work():
            try:
                for _ in range(50):
                    assert [model.name for model in client.models()] == ["model"]
                    client.ping()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []


def test_a_forked_child_must_connect_again(broker):
    client = ipc_cache.Client()

    def child():
        with pytest.raises(ipc_cache.Usage, match="parent process"):
            client.ping()
        client.close()
        with ipc_cache.Client() as own:
            own.ping()

    with forked(child) as finish:
        finish()
    client.ping()
    client.close()


def test_the_broker_ends(broker):
    client = ipc_cache.Client()
    broker.stop()
    with pytest.raises(ipc_cache.NoBroker):
        client.ping()
    client.close()
    broker.start()


def test_arguments_that_make_no_sense(broker):
    for arguments in ({"wait": -1}, {"wait": float("nan")}, {"verify": "hope"}, {"key": {"a": 1}}):
        with pytest.raises(ipc_cache.Usage):
            ipc_cache.attach("model", **arguments)
    with pytest.raises(ipc_cache.Usage, match="NUL"):
        ipc_cache.attach("mod\0el")
    with pytest.raises(ipc_cache.Usage):
        ipc_cache.attach()


def test_errors_travel_between_processes():
    for error in (
        errors.make(4, "text", 2, "dtype", "BF16", "F32"),
        errors.make(6, "text", 13),
        errors.make(99, "text"),
        errors.MetaLeft("text", ["a", "b"]),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == "text" and again.__dict__ == error.__dict__
    assert {errors.make(code, "").code for code in range(1, 15)} == set(range(1, 15))
