"""Clients that break the protocol: each ends its own connection with a reason, and nobody else notices."""
import os
import struct
import time

import pytest

import models
import protocol
from harness import turned_away, wait_until
from models import Handmade
from protocol import (ATTACH, BEGIN, COMMIT, DETACH, DRAFT, EVICT, HELLO, LIST, PING, SEGMENTS, STAT, Failure, header,
                      hello, selector)

SHORT = "[timeouts]\nhello_ms = 150\nidle_ms = 400\nwrite_ms = 250\n"


def ended(client, data, fds=()):
    """What the broker says when it ends the connection over this message."""
    client.send_raw(data, fds)
    failure = client.last_words()
    client.close()
    return failure


def check_protocol(broker, failure, says):
    assert failure is not None, "the connection ended without a reason"
    assert failure.code == protocol.PROTOCOL and says in failure.message, failure.message
    assert broker.serves()


# ---- lengths and headers ----


@pytest.mark.parametrize("data, says", [
    (b"x", "1 bytes"),
    (header(PING)[:15], "15 bytes"),
    (header(PING, size=15), "says 15"),
    (header(PING, size=17), "says 17"),
    (header(PING, size=0), "says 0"),
    (header(PING, size=0xFFFFFFFF), "says 4294967295"),
    (header(PING, b"body"), "PING has no body"),
    (header(STAT, b"body"), "STAT has no body"),
    (header(COMMIT, b"body"), "COMMIT has no body"),
    (header(DETACH, b"body"), "DETACH has no body"),
    (header(LIST, bytes(7)), "at least"),
    (header(LIST, bytes(9)), "do not add up"),
    (header(HELLO, hello()[:-1]), "at least"),
    (header(HELLO, hello() + b"x"), "no ipc-cache client"),
    (header(PING, request=0), "request id"),
    (header(PING, reserved=1), "reserved"),
    (header(PING, code=1), "reserved"),
    (header(0), "type 0"),
    (header(12), "type 12"),
    (header(63), "type 63"),
    (header(protocol.EVICTED), "type 64"),
    (header(protocol.GOODBYE), "type 65"),
    (header(0xFFFF), "type 65535"),
    (header(SEGMENTS, bytes(8)), "0 came"),
    (header(SEGMENTS, struct.pack("<II", 0, 1)), "says 1 file descriptors, 0 came"),
    (header(SEGMENTS, bytes(9)), "SEGMENTS"),
    (header(DRAFT, bytes(8)), "0 came"),
    (header(DRAFT, bytes(9)), "DRAFT"),
    (header(BEGIN, bytes(31)), "at least"),
    (header(BEGIN, bytes(33)), "do not add up"),
    (header(BEGIN, protocol.begin({"a": "b"}, [4096])[:-1]), "do not add up"),
    (header(BEGIN, protocol.begin({"a": "b"}, [4096]) + b"x"), "do not add up"),
    (header(BEGIN, protocol.begin({"a": "b"}, [4096], flags=4)), "known flags"),
    (header(BEGIN, protocol.begin({"a": "b"}, [4096] * 253)), "at most 252 segments"),
    (header(BEGIN, protocol.begin({"a": "b"}, [4096], name="n" * 256)), "255 bytes of name"),
    (header(BEGIN, struct.pack("<IIIIIHHII", 0, 0, 0xFFFFFFFF, 0, 0, 0, 1, 0, 0)), "at most 252 segments"),
    (header(ATTACH, bytes(15)), "at least"),
    (header(ATTACH, selector("x") + b"y"), "do not add up"),
    (header(ATTACH, selector("x" * 513)), "malformed selector"),
    (header(ATTACH, selector("nul\0")), "malformed selector"),
    (header(ATTACH, struct.pack("<IIHHI", 2, 0, 0, 0, 0)), "malformed selector"),
    (header(ATTACH, struct.pack("<IIHHI", 0, 0, 9, 0, 0)), "malformed selector"),
    (header(ATTACH, struct.pack("<IIHHI", 0, 0, 0, 0, 0xFFFFFFFF)), "malformed selector"),
    (header(EVICT, struct.pack("<II", 3, 0) + selector("x")), "EVICT"),
    (header(EVICT, struct.pack("<II", 0, 1) + selector("x")), "EVICT"),
    (header(EVICT, struct.pack("<II", 0, 0) + selector("x") + b"y"), "EVICT"),
])
def test_a_malformed_message_ends_its_connection_with_a_reason(broker, data, says):
    check_protocol(broker, ended(broker.connect(), data), says)


@pytest.mark.parametrize("body, says", [
    (struct.pack("<IIHHI", 0, 0, 0, 1, 3) + b"abc", "does not end"),
    (struct.pack("<IIHHI", 0, 0, 0, 1, 5) + struct.pack("<HH", 1, 1) + b"a", "does not end"),
    (struct.pack("<IIHHI", 0, 0, 0, 65, 0), "65 fields"),
    (selector(key={"a b": "c"}), "character"),
])
def test_a_key_that_is_none_is_refused(broker, client, body, says):
    with pytest.raises(Failure) as refused:
        client.call(ATTACH, body)
    assert says in refused.value.message
    assert broker.serves()


@pytest.mark.parametrize("kind", [BEGIN, SEGMENTS, DRAFT, COMMIT, ATTACH, DETACH, LIST, EVICT, PING, STAT])
def test_nothing_is_answered_before_the_greeting(broker, kind):
    check_protocol(broker, ended(broker.connect(greet=False), header(kind, bytes(64))), "before HELLO")


@pytest.mark.parametrize("greeting, says", [
    (hello(major=0), "protocol version 0"),
    (hello(major=2), "protocol version 2"),
    (hello(magic=b"http"), "no ipc-cache client"),
])
def test_a_wrong_greeting_is_refused(broker, greeting, says):
    check_protocol(broker, ended(broker.connect(greet=False), header(HELLO, greeting)), says)


def test_a_newer_minor_version_is_welcome(broker):
    with broker.connect(greet=False) as client:
        reply = client.call(HELLO, hello(minor=7))
        assert struct.unpack_from("<HHI", reply.body) == (1, 0, 0)
        client.ping()


def test_greeting_and_first_request_may_come_back_to_back(broker):
    with broker.connect(greet=False) as client:
        client.send(HELLO, hello())
        ping = client.send(PING)
        client.wait_for(HELLO, 1)
        client.wait_for(PING, ping)


def test_an_empty_message_is_the_end(broker):
    client = broker.connect()
    client.send_raw(b"")
    client.last_words()
    assert broker.serves()
    client.close()


@pytest.mark.parametrize("size", [protocol.MAX_MESSAGE + 1, 100_000])
def test_a_message_that_is_too_long_is_refused(broker, size):
    check_protocol(broker, ended(broker.connect(), header(PING, bytes(size - 16))), "longer than 65536")


def test_the_longest_message_is_read_to_its_end(broker):
    check_protocol(broker, ended(broker.connect(), header(PING, bytes(protocol.MAX_MESSAGE - 16))), "PING has no body")


def test_a_claim_goes_with_the_connection_that_broke_the_protocol(broker, client):
    Handmade().begin(client)
    ended(client, header(77))
    assert broker.becomes_empty()


def test_a_lease_goes_with_the_connection_that_broke_the_protocol(broker, client):
    broker.leaves_models = True
    Handmade().publish(client)
    holder = broker.connect()
    holder.attach("handmade").close()
    ended(holder, header(77))
    wait_until(lambda: client.stat()["leases"] == 0, "the lease to end")


# ---- silence and slowness ----


def test_who_says_nothing_is_shown_out_and_delays_nobody(start_broker):
    broker = start_broker(SHORT)
    silent = [broker.connect(greet=False) for _ in range(20)]
    began = time.monotonic()
    for _ in range(50):
        assert broker.serves()
    assert broker.stat()["connections"] >= 1
    for client in silent:
        failure = client.last_words()
        assert failure.code == protocol.TIMEOUT and "no greeting" in failure.message
        client.close()
    assert time.monotonic() - began >= 0.1


def test_who_greets_and_then_idles_is_shown_out_later(start_broker):
    broker = start_broker(SHORT)
    with broker.connect() as client:
        failure = client.last_words()
    assert failure.code == protocol.TIMEOUT and "nothing asked and nothing held" in failure.message
    assert broker.serves()


def test_who_holds_or_claims_or_waits_may_be_silent_for_long(start_broker):
    broker = start_broker(SHORT, leaves_models=True)
    with broker.connect() as publisher, broker.connect() as holder, broker.connect() as waiter:
        Handmade().publish(publisher)
        holder.attach("handmade").close()
        Handmade("next").begin(publisher)
        request = waiter.send(ATTACH, selector("next", wait_ms=900))
        with pytest.raises(Failure) as refused:
            waiter.wait_for(ATTACH, request)
        assert refused.value.code == protocol.TIMEOUT and "waited 900 ms" in refused.value.message
        holder.ping()
        publisher.ping()


def test_who_asks_now_and_then_is_not_idle(start_broker):
    broker = start_broker(SHORT)
    with broker.connect() as client:
        for _ in range(8):
            time.sleep(0.1)  # the point is the passing of time
            client.ping()


def flood(client, data, messages=20_000):
    """Sends until nothing more is taken; how many were."""
    client.sock.setblocking(False)
    sent = 0
    try:
        while sent < messages:
            client.send_raw(data)
            sent += 1
    except (BlockingIOError, BrokenPipeError, ConnectionResetError):
        pass
    return sent


@pytest.mark.parametrize("kind, body", [(PING, b""), (LIST, bytes(8)), (STAT, b"")])
def test_who_does_not_read_its_replies_is_closed_and_others_are_served(start_broker, kind, body):
    broker = start_broker(SHORT, leaves_models=True)
    with broker.connect() as publisher:
        for number in range(10):
            Handmade(f"m{number}", key={"n": str(number), "long": "v" * 3000}).publish(publisher)
    deaf = [broker.connect() for _ in range(5)]
    assert sum(flood(client, header(kind, body)) for client in deaf) > 5
    with broker.connect() as client:
        for number in range(10):
            with client.attach(f"m{number}"):
                client.detach()
        wait_until(lambda: client.stat()["connections"] == 1, "the deaf connections to be closed")
    for client in deaf:
        client.close()


def test_a_flood_of_requests_from_one_is_answered_and_starves_nobody(broker):
    with broker.connect() as busy:
        requests = [busy.send(PING) for _ in range(50)]
        for _ in range(20):
            assert broker.serves()
        for request in requests:
            busy.wait_for(PING, request)


def test_an_attach_whose_reply_is_not_read_holds_its_lease_and_nothing_else(broker, client):
    broker.leaves_models = True
    Handmade(segments=100, size=4096).publish(client)
    deaf = [broker.connect() for _ in range(10)]
    for each in deaf:
        each.send(ATTACH, selector("handmade"))
    wait_until(lambda: client.stat()["leases"] == 10, "the leases")
    with client.attach("handmade"):
        pass
    before = client.stat()["refused"]
    deaf[0].send(ATTACH, selector("handmade"), request=99)
    wait_until(lambda: client.stat()["refused"] == before + 1, "the second ATTACH to be refused")
    failure = deaf[0].last_words()
    assert failure.code == protocol.PROTOCOL and "before the reply to the last one was read" in failure.message
    for each in deaf:
        each.close()
    client.detach()
    wait_until(lambda: client.stat()["leases"] == 0, "the leases to end")


def test_an_engine_that_has_read_its_attach_may_read_later_replies_late(start_broker):
    broker = start_broker(SHORT, leaves_models=True)
    with broker.connect() as engine, broker.connect() as watcher:
        Handmade().publish(watcher)
        engine.attach("handmade").close()
        ping = engine.send(PING)
        end = time.monotonic() + 0.8  # several times write_ms
        while time.monotonic() < end:
            assert watcher.stat()["leases"] == 1, "the lease ended for want of a reader of another reply"
            time.sleep(0.02)
        engine.wait_for(PING, ping)


# ---- many connections ----


def test_thousands_of_connections_are_taken_up_to_the_limit_which_is_named(start_broker):
    broker = start_broker("[limits]\nconnections = 2500\n")
    open_ones = [broker.connect() for _ in range(2500)]
    failure = turned_away(protocol.dial(broker.directory))
    assert failure.code == protocol.REFUSED
    assert f"uid {os.geteuid()} has 2500 connections open" in failure.message and "connections in [limits]" in failure.message
    assert broker.cli("ping").status == 6
    for client in open_ones[::100]:
        client.ping()
    for client in open_ones:
        client.close()
    wait_until(lambda: broker.cli("ping").status == 0, "connections to be free again")


def test_connections_that_come_and_go_at_once_leave_nothing(broker):
    for _ in range(500):
        protocol.dial(broker.directory).close()
    with broker.connect() as client:
        wait_until(lambda: client.stat()["connections"] == 1, "the connections to go")


def test_a_forged_list_position_is_harmless(broker, client):
    broker.leaves_models = True
    Handmade().publish(client)
    for after in (1, 2, 0xFFFFFFFFFFFFFFFF):
        assert client.call(LIST, struct.pack("<Q", after)).body == bytes(8)
    models.Handmade("two").publish(client)
    assert [m["name"] for m in client.list()] == ["handmade", "two"]
