"""What happens when something runs out: file descriptors, time, answers."""
import os
import signal
import socket
import subprocess

import pytest

import protocol
from harness import failing_start, turned_away, wait_until
from models import Handmade
from protocol import ATTACH, REFUSED, Failure, selector
from users import connect_as, user_prefix


def limited(soft, hard=None):
    return ("prlimit", f"--nofile={soft}:{hard or soft}")


def connections_until_full(broker):
    """Opens connections until the broker turns one away; them, and what it said."""
    held = []
    while len(held) < 2000:
        try:
            held.append(broker.connect())
        except Failure as failure:
            return held, failure
    raise AssertionError("the broker was never full")


def test_a_broker_out_of_fds_turns_new_connections_away_and_recovers(start_broker):
    broker = start_broker(prefix=limited(600), leaves_models=True)
    with broker.connect() as engine, broker.connect() as publisher:
        made = Handmade(segments=4)
        made.publish(publisher)
        held, failure = connections_until_full(broker)
        assert failure.code == REFUSED and "out of file descriptors" in failure.message
        assert "LimitNOFILE" in failure.message and "of 600" in failure.message
        refused = broker.cli("ls", expect=6)
        assert "out of file descriptors" in refused.err
        with engine.attach("handmade") as attached:
            assert [bytes(m[:]) for m in attached.maps] == made.contents
        with pytest.raises(Failure) as full:
            Handmade("more").begin(publisher)
        assert "out of file descriptors" in full.value.message
        for client in held:
            client.ping()
            client.close()
        wait_until(lambda: serves(broker), "the broker to take connections again")
        engine.detach()
        Handmade("more").publish(publisher)


def serves(broker):
    try:
        return broker.serves()
    except Failure:
        return False


def test_models_are_not_taken_beyond_the_brokers_fds(start_broker):
    broker = start_broker(prefix=limited(600), leaves_models=True)
    with broker.connect() as client:
        Handmade(segments=100, size=4096).publish(client)
        with pytest.raises(Failure) as refused:
            client.begin({"a": "b"}, [4096] * 252)
        assert refused.value.code == REFUSED and "101 model fds of 600" in refused.value.message
        client.attach("handmade").close()


def test_a_broker_with_too_few_fds_does_not_start(binaries, folder):
    status, said = failing_start(binaries, folder / "broker", prefix=limited(200))
    assert status == 6 and "RLIMIT_NOFILE is 200" in said and "512" in said


def test_connections_beyond_the_table_itself_are_turned_away_too(start_broker):
    """The limit is lowered behind the broker's back: accept fails, and the spare fd lets it say so."""
    broker = start_broker(prefix=limited(600))
    with broker.connect() as client:
        now = broker.fd_count()
        subprocess.run(["prlimit", "--pid", str(broker.pid), f"--nofile={now}:600"], check=True)
        for _ in range(3):
            failure = turned_away(protocol.dial(broker.directory))
            assert failure.code == REFUSED and "file descriptors" in failure.message
        client.ping()
        subprocess.run(["prlimit", "--pid", str(broker.pid), "--nofile=600:600"], check=True)
    assert broker.serves()


def test_an_engine_with_few_fds_is_told_which_limit_to_raise(broker, client):
    broker.leaves_models = True
    Handmade(segments=64, size=4096).publish(client)
    refused = broker.cli("attach", "handmade", prefix=limited(20))
    assert refused.status == 6 and "RLIMIT_NOFILE" in refused.err and "ulimit -n" in refused.err, refused
    wait_until(lambda: client.stat()["leases"] == 0, "no lease to be left")
    assert broker.cli("attach", "handmade", "--json", prefix=limited(128), expect=0).json["segments"] == 64


def test_a_load_with_too_few_fds_says_so_and_leaves_nothing(broker, cli, small):
    failures = 0
    for count in range(4, 14):
        done = cli("load", small, prefix=limited(count))
        if done.status == 0:
            cli("evict", "small", expect=0)
        else:
            failures += 1
            assert "oo many open files" in done.err or "RLIMIT_NOFILE" in done.err, done
        assert broker.becomes_empty()
    assert failures > 0


def test_who_reads_no_replies_cannot_keep_others_from_attaching(start_broker, other_users, folder):
    """The fds of unread replies count against the broker's user, who is not root here: each uid has a share of them."""
    uid, deaf_uid = 1777, 1778  # of their own: the kernel counts what is in flight per user, over all processes
    os.chown(folder, uid, uid)
    prefix = ("setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", *limited(1024))
    config = f"[broker]\nopen = all\n[access]\nattach = {deaf_uid}\ntrusted = {uid}\n"
    broker = start_broker(config, prefix=prefix, user=prefix[:6], leaves_models=True)
    with connect_as(uid, broker.directory) as client:
        Handmade(segments=200, size=4096).publish(client, visibility=protocol.ALL)
        deaf = [connect_as(deaf_uid, broker.directory) for _ in range(12)]
        for each in deaf:
            each.send(ATTACH, selector("handmade"))
        with connect_as(deaf_uid, broker.directory) as late, pytest.raises(Failure) as refused:
            late.attach("handmade")
        assert refused.value.code == REFUSED and f"uid {deaf_uid} has 201 file descriptors" in refused.value.message
        client.attach("handmade").close()
        deaf[0].close()  # its share is free again
        for each in deaf[1:]:
            each.close()
        with connect_as(deaf_uid, broker.directory) as late:
            late.attach("handmade").close()


# ---- time ----


def test_a_stopped_broker_is_given_up_in_time(broker, cli):
    broker.signal(signal.SIGSTOP)
    for verb in (["ls"], ["ping"], ["stat"], ["attach", "x"], ["evict", "x"]):
        late = cli("--timeout", 200, *verb)
        assert late.status == 1 and "did not answer in time" in late.err, late
    broker.signal(signal.SIGCONT)
    wait_until(broker.serves, "the broker to go on")


def test_a_broker_whose_queue_is_full_is_given_up_in_time(broker, cli):
    broker.signal(signal.SIGSTOP)
    waiting = []
    with open("/proc/sys/net/core/somaxconn", encoding="ascii") as file:
        backlog = int(file.read())
    if backlog > 10000:
        broker.signal(signal.SIGCONT)
        pytest.skip(f"net.core.somaxconn is {backlog}: too many connections to open here")
    while len(waiting) <= backlog + 1:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        fd = os.open(broker.directory, os.O_PATH)
        try:
            sock.connect(f"/proc/self/fd/{fd}/broker.sock")
            waiting.append(sock)
        except BlockingIOError:
            sock.close()
            break
        finally:
            os.close(fd)
    late = cli("--timeout", 200, "ping")
    assert late.status == 1 and "stopped or overloaded" in late.err, late
    broker.signal(signal.SIGCONT)
    for sock in waiting:
        sock.close()
    wait_until(lambda: cli("ping").status == 0, "the broker to go on")


def test_a_stopped_holder_keeps_its_lease_and_nobody_waits_for_it(broker, cli, client, resident):
    with cli.holding("small") as holder:
        holder.send_signal(signal.SIGSTOP)
        assert str(holder.pid) in cli("evict", "small", expect=6).err
        assert cli("evict", "small", "--force", expect=0)
        assert client.list()[0]["leases"] == 1
        cli("load", resident, "--name", "small", expect=0)
        cli("attach", "small", expect=0)
        holder.send_signal(signal.SIGCONT)
        assert holder.wait(60) == 6
    wait_until(lambda: len(client.list()) == 1, "the evicted model to go")
