"""Publishers that die at any moment, and one that keeps the broker busy."""
import os
import struct

import pytest

import models
import protocol
from harness import child, refused, wait_until
from models import Handmade
from protocol import NOT_FOUND, READY


@pytest.fixture(scope="session")
def large():
    """A model of 100,000 tensors: validating it takes the broker a while."""
    made = Handmade("large", size=4096)
    made.manifest = models.large_draft("large", made.key)
    return made


def up_to(step, broker, made, large):
    """What a publisher does until it dies."""
    def publisher(ready):
        client = broker.connect(greet=step != "connect")
        if step in ("connect", "HELLO"):
            ready()
            return
        if step.startswith("large"):
            large.begin(client)
            large.segments(client)
            fd = protocol.sealed(large.manifest)
            client.send(protocol.DRAFT, struct.pack("<Q", len(large.manifest)), [fd])
            os.close(fd)
            ready()
            return
        made.begin(client)
        if step in ("one SEGMENT", "SEGMENTS", "DRAFT"):
            fds = [protocol.sealed(content) for content in made.contents]
            client.segments(fds[:1] if step == "one SEGMENT" else fds)
            protocol.closing(*fds)
        if step == "DRAFT":
            client.draft(made.draft.build())
        ready()
    return publisher


STEPS = ["connect", "HELLO", "BEGIN", "one SEGMENT", "SEGMENTS", "large DRAFT", "DRAFT"]


@pytest.mark.parametrize("step", STEPS)
def test_a_publisher_killed_after_a_step_leaves_nothing(broker, large, step):
    made = Handmade(segments=3)
    waiter = broker.connect()
    name = "large" if step.startswith("large") else "handmade"
    claimed = step not in ("connect", "HELLO")
    with child(up_to(step, broker, made, large)) as pid:
        if claimed:
            wait_until(lambda: broker.stat()["loading"] == 1, "the claim")
            request = waiter.send(protocol.ATTACH, protocol.selector(name, wait_ms=protocol.FOREVER))
            broker.serves()  # so it waits for this publisher: asked after the end, it would wait for the next one
    if claimed:
        failure = refused(waiter.wait_for, protocol.ATTACH, request)
        assert failure.code == NOT_FOUND
        assert f"process {pid}" in failure.message and "ended without committing" in failure.message
    waiter.close()
    assert broker.becomes_empty()
    assert broker.models() == []


def test_a_publisher_killed_right_after_its_commit_leaves_the_model(broker):
    broker.leaves_models = True
    made = Handmade()

    def publisher(ready):
        made.publish(broker.connect())
        ready()

    with child(publisher):
        pass
    with broker.connect() as client, client.attach("handmade") as attached:
        assert bytes(attached.maps[0][:]) == made.contents[0]


def test_a_commit_whose_reply_nobody_reads_counts(broker):
    broker.leaves_models = True
    made = Handmade()
    with broker.connect() as publisher:
        made.begin(publisher)
        made.segments(publisher)
        publisher.draft(made.draft.build())
        publisher.send(protocol.COMMIT)
    wait_until(lambda: [m["state"] for m in broker.models()] in ([READY], []), "the broker to have seen it")
    assert [m["state"] for m in broker.models()] == [READY]


def test_attaches_go_on_while_hostile_drafts_are_validated(broker, client, large):
    """How fast is the benchmark's question; here: that they are answered at all, and rightly, in between."""
    broker.leaves_models = True
    Handmade().publish(client)
    hostile = broker.connect()
    large.begin(hostile)
    large.segments(hostile)
    with protocol.closing(protocol.sealed(large.manifest)) as fd:
        during = 0
        for _ in range(5):
            request = hostile.send(protocol.DRAFT, struct.pack("<Q", len(large.manifest)), [fd])
            hostile.sock.setblocking(False)
            while True:
                with broker.connect() as engine, engine.attach("handmade"):
                    during += 1
                try:
                    hostile.sock.recv(1, 0x2 | 0x40)  # MSG_PEEK | MSG_DONTWAIT
                    break
                except BlockingIOError:
                    pass
            hostile.wait_for(protocol.DRAFT, request)
    assert during > 5
    hostile.close()
    wait_until(lambda: client.stat()["loading"] == 0, "the hostile claim to go")
