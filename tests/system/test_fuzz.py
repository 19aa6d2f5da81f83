"""Random and damaged messages with random fds over many connections: whatever they say, the broker lives on."""
import contextlib
import os
import random
import struct

import pytest

import protocol
from harness import wait_until
from models import Handmade
from protocol import ATTACH, BEGIN, COMMIT, DETACH, DRAFT, EVICT, HELLO, LIST, PING, SEGMENTS, STAT, header, selector

MESSAGES = 2000
CONNECTIONS = 24


def make_pool():
    """fds of every kind."""
    pipe, pair = os.pipe(), os.pipe()
    path = os.open("/", os.O_PATH)
    return [*pipe, *pair, path, os.open("/dev/null", os.O_RDWR), os.open("/", os.O_RDONLY), protocol.memfd(b"x" * 4096),
            protocol.sealed(b"x" * 4096), protocol.sealed(b"y" * 8192), protocol.sealed(b"z" * 8192), protocol.sealed()]


def sensible(rng, made, draft_bytes):
    """A message that could be right at the right moment, and how many fds belong to it."""
    kind = rng.choice([HELLO, BEGIN, SEGMENTS, DRAFT, COMMIT, ATTACH, DETACH, LIST, EVICT, PING, STAT])
    key = {"model": f"/{rng.randrange(3)}", "device": rng.choice(["host", "x" * 50])}
    text = rng.choice(["", "handmade", "abcd", "m" * 40])
    wait = rng.choice([0, 1, 20, protocol.FOREVER])
    body, fds = {
        HELLO: lambda: (protocol.hello(), 0),
        BEGIN: lambda: (protocol.begin(made.key if rng.random() < .5 else key, [8192] * rng.randrange(4), made.name,
                                       rng.randrange(3), rng.randrange(3), rng.randrange(2), wait), 0),
        SEGMENTS: lambda: (struct.pack("<II", rng.randrange(3), n := rng.randrange(1, 3)), n),
        DRAFT: lambda: (struct.pack("<Q", rng.choice([draft_bytes, 4096, 8192, 0])), 1),
        ATTACH: lambda: (selector(text, key if rng.random() < .5 else {}, rng.random() < .2, wait), 0),
        LIST: lambda: (struct.pack("<Q", rng.randrange(5)), 0),
        EVICT: lambda: (struct.pack("<II", rng.randrange(3), 0) + selector(text, wait_ms=min(wait, 20)), 0),
    }.get(kind, lambda: (b"", 0))()
    return header(kind, body, rng.randrange(1, 50)), fds


def mutate(rng, data):
    data = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        what = rng.randrange(5)
        if what == 0 and data:
            data[rng.randrange(len(data))] = rng.randrange(256)
        elif what == 1 and data:
            at = rng.randrange(len(data))
            data[at:at + 4] = rng.choice([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\1\0\0\0"])
        elif what == 2:
            del data[rng.randrange(len(data) + 1):]
        elif what == 3:
            data += rng.randbytes(rng.choice([1, 8, 100, 5000]))
        else:
            data = bytearray(rng.randbytes(rng.randrange(200)))
    if len(data) >= 4 and rng.random() < .7:
        data[:4] = struct.pack("<I", len(data))  # so that what follows is looked at
    return bytes(data)


def drain(client):
    """Reads what is there. False when the connection is over."""
    while True:
        try:
            client.receive(seconds=0).close()
        except BlockingIOError:
            return True
        except protocol.Closed:
            return False


@pytest.mark.parametrize("seed", range(3))
def test_the_broker_survives_random_messages(broker, seed):
    rng, pool = random.Random(seed), make_pool()
    made = Handmade(size=8192, segments=2)
    draft = protocol.sealed(made.draft.build())
    pool.append(draft)
    good = [protocol.sealed(content) for content in made.contents]
    steady = broker.connect()
    clients = []
    for number in range(MESSAGES):
        if len(clients) < CONNECTIONS or rng.random() < .05:
            clients.append(broker.connect(greet=rng.random() < .95))
        client = rng.choice(clients)
        data, count = sensible(rng, made, os.fstat(draft).st_size)
        fds = [draft] if data[4] == DRAFT and rng.random() < .7 else good[:count] if rng.random() < .5 else \
            rng.choices(pool, k=count)
        if rng.random() < .5:
            data = mutate(rng, data)
        if rng.random() < .1:
            fds = rng.choices(pool, k=rng.choice([1, 2, 30, 253]))
        client.sock.setblocking(False)
        try:
            try:
                client.send_raw(data, fds)
            except PermissionError:  # the kernel carries no fds to a connection without a claim
                client.send_raw(data)
            alive = drain(client) if rng.random() < .6 else True
        except OSError:
            alive = False
        if not alive or rng.random() < .02:
            client.close()
            clients.remove(client)
        if number % 50 == 0:
            steady.ping()
    for client in clients:
        client.close()
    for fd in (*pool, *good):
        with contextlib.suppress(OSError):
            os.close(fd)
    wait_until(lambda: steady.stat()["connections"] == 1, "the connections to end")
    stat = steady.stat()
    assert (stat["loading"], stat["leases"]) == (0, 0)
    broker.evict_all()
    steady.close()
    assert broker.becomes_empty()


def test_drafts_with_every_word_of_their_header_damaged_are_survived(broker, client):
    """Mutations of the tables are the unit tests' job; here a few hundred go through a real broker."""
    import manifest
    made = Handmade(segments=2)
    draft = made.draft.build()
    made.begin(client)
    made.segments(client)
    for at in range(0, 256, 4):
        for value in (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\1\0\0\0"):
            damaged = manifest.reseal(draft[:at] + value + draft[at + 4:])
            request = client.last_request + 1
            with contextlib.suppress(protocol.Failure):
                client.draft(damaged)
            assert client.last_request == request
    client.draft(draft)
    client.close()
    assert broker.becomes_empty()
