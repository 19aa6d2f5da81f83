"""A server that is started again when it dies (ipc_cache.vllm.standby), with servers of a few lines."""

import os
import signal
import sys

from harness import run_python, running, wait_until

# What each server does, by its number; its process id goes into a file of its own line.
SERVERS = """
    import os, signal, sys, time
    sys.path[:0] = {path!r}
    from ipc_cache.vllm.standby import supervise
    started = {folder!r} + "/started"
    def serve():
        with open(started, "a") as file:
            print(os.getpid(), file=file)
        number = len(open(started).readlines())
        {body}
    print("begun", flush=True)
    sys.exit(supervise(serve, soon={soon}))
"""


def servers(tmp_path, body, soon=0):
    return SERVERS.format(path=sys.path[:1], folder=str(tmp_path), body=body, soon=soon)


def started(tmp_path):
    """The process ids of the servers."""
    path = tmp_path / "started"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def running_still(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_end_in_order_is_none(tmp_path):
    """vLLM's server ends with 0 when its engine has died."""
    err = run_python(servers(tmp_path, "if number == 3: sys.exit(2)"), str(tmp_path), status=2)[1]
    assert len(started(tmp_path)) == 3 and err.count("the server has ended (status 0); it is started again") == 2


def test_wrong_arguments_are_not_tried_again(tmp_path):
    run_python(servers(tmp_path, "sys.exit(2)"), str(tmp_path), status=2)
    assert len(started(tmp_path)) == 1


def test_who_is_killed_or_fails_is_started_again(tmp_path):
    body = """if number == 1: os.kill(os.getpid(), signal.SIGKILL)
        if number < 6: raise ValueError(number)
        sys.exit(2)"""
    err = run_python(servers(tmp_path, body), str(tmp_path), status=2)[1]
    assert len(set(started(tmp_path))) == 6
    assert "the server has ended (signal 9); it is started again" in err
    assert err.count("the server has ended (status 1)") == 4 and "ValueError: 5" in err


def test_who_keeps_ending_soon_is_given_up(tmp_path):
    err = run_python(servers(tmp_path, "sys.exit('no such model')", soon=1000), str(tmp_path), status=1)[1]
    assert len(started(tmp_path)) == 3
    assert err.count("no such model") == 3 and "ended soon after its start 3 times, at last with status 1" in err


def test_nothing_of_a_dead_server_is_left_when_the_next_begins(tmp_path):
    """Not even what ignores its parent's end; one that leads a group of its own is not the server's any more."""
    body = """if number == 1:
            pid = os.fork()
            if pid == 0: time.sleep(70)
            open(child, "w").write(str(pid))
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(2 if not os.path.exists("/proc/" + open(child).read()) else "it is there")"""
    code = servers(tmp_path, body, soon=1000).replace(
        "    def serve", f"    child = {str(tmp_path)!r} + '/child'\n    def serve"
    )
    run_python(code, str(tmp_path), status=2)
    assert len(started(tmp_path)) == 2


def test_a_signal_is_passed_on(tmp_path):
    for number in (signal.SIGTERM, signal.SIGINT):
        (tmp_path / "started").unlink(missing_ok=True)
        with running(servers(tmp_path, "time.sleep(70)"), str(tmp_path)) as process:
            wait_until(lambda: started(tmp_path), "the server")
            process.send_signal(number)
            process.communicate(timeout=60)
            assert process.returncode == 128 + number
        assert len(started(tmp_path)) == 1 and not running_still(started(tmp_path)[0])


def test_a_server_ends_with_its_standby(tmp_path):
    with running(servers(tmp_path, "time.sleep(70)"), str(tmp_path)) as process:
        pid = wait_until(lambda: started(tmp_path), "the server")[0]
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not running_still(pid), "the server to end")
