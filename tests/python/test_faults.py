"""A forbidden write: the writer dies, alone, and with the handler it says of what."""

import signal

import pytest

import ipc_cache

from harness import run_python

WRITE = """
    import ctypes, sys
    import dl, ipc_cache
    weights = ipc_cache.attach("model")
    {before}
    taken = dl.Taken(weights.dlpack("embed.weight").__dlpack__())
    {after}
    ctypes.memset(taken.data + 4, 1, 1)
    print("still here")
"""


def write(broker, before="", after=""):
    import os

    here = os.path.dirname(__file__)
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    code = WRITE.format(before=before, after=after)
    return run_python(code, broker.directory, status=-signal.SIGSEGV, PYTHONPATH=path)[1]


def test_without_the_handler_it_just_dies(resident, broker):
    assert write(broker) == ""
    with ipc_cache.attach(resident) as weights:
        weights.verify()


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_handler_names_the_tensor(resident, broker, when):
    said = write(broker, **{when: "ipc_cache.faults.enable()"})
    assert said == (
        "ipc-cache: a write to shared, read-only weights: byte 4 of tensor embed.weight, offset 4 of segment 0 of model "
        "model; copy what is written, or attach privately\n"
    )


def test_what_is_attached_later_is_named_too(resident, broker):
    said = write(broker, "weights.close(); ipc_cache.faults.enable(); weights = ipc_cache.attach('model')")
    assert "byte 4 of tensor embed.weight" in said


def test_the_handler_before_is_called_afterwards(resident, broker):
    said = write(broker, "import faulthandler; faulthandler.enable(); ipc_cache.faults.enable()")
    assert "byte 4 of tensor embed.weight" in said and "Segmentation fault" in said and "File" in said


def test_disabled_it_is_silent_again(resident, broker):
    assert write(broker, "ipc_cache.faults.enable(); ipc_cache.faults.disable()") == ""
    said = write(
        broker,
        "ipc_cache.faults.enable(); import faulthandler; faulthandler.enable()\n    try:\n        "
        "ipc_cache.faults.disable()\n    except ipc_cache.Busy as error:\n        print(error, file=sys.stderr)",
    )
    assert "installed after" in said and "Segmentation fault" in said


def test_faults_elsewhere_are_not_ours(resident, broker):
    _, err = run_python(
        """
        import ctypes, ipc_cache
        ipc_cache.faults.enable()
        weights = ipc_cache.attach("model")
        ctypes.memset(16, 1, 1)
        """,
        broker.directory, status=-signal.SIGSEGV,
    )  # fmt: skip
    assert err == ""


def test_signals_that_are_sent_are_not_faults(resident, broker):
    _, err = run_python(
        """
        import os, signal, ipc_cache
        ipc_cache.faults.enable()
        weights = ipc_cache.attach("model")
        os.kill(os.getpid(), signal.SIGSEGV)
        os.kill(os.getpid(), signal.SIGSEGV)
        """,
        broker.directory, status=-signal.SIGSEGV,
    )  # fmt: skip
    assert err == ""
