"""Publishing, step by step, by a client that speaks the protocol itself; and publishers that die."""
import contextlib
import os
import select
import struct

import pytest

import protocol
from harness import child, refused, wait_until
from models import Handmade
from protocol import BUSY, EXISTS, INVALID, LOADING, PROTOCOL, READY, REFUSED, REPLACE


def test_a_model_is_published_step_by_step(broker, client):
    broker.leaves_models = True
    made = Handmade(segments=3)
    with broker.connect() as publisher:
        identity = made.begin(publisher)
        model = client.list()[0]
        assert (model["id"], model["state"], model["generation"], model["bytes"]) == (identity, LOADING, 0, sum(made.sizes))
        assert model["publisher_pid"] == os.getpid() and model["key"] == made.key
        made.segments(publisher)
        assert client.model("handmade")["state"] == LOADING
        publisher.draft(made.draft.build())
        assert client.model("handmade")["state"] == LOADING
        assert publisher.commit() == (identity, 1)
        assert client.model("handmade")["state"] == READY
    with client.attach("handmade") as attached:
        assert [bytes(m[:]) for m in attached.maps] == made.contents
        header = attached.manifest.header
        assert (header["owner_uid"], header["publisher_pid"], header["generation"]) == (os.geteuid(), os.getpid(), 1)
        assert header["instance"] == client.instance != bytes(16) and header["created_ns"] == model_time(client)


def model_time(client):
    return client.list()[0]["created_ns"]


def test_segments_may_come_one_by_one_in_any_order(broker, client):
    broker.leaves_models = True
    made = Handmade(segments=4)
    made.begin(client)
    for number in (2, 0, 3, 1):
        with protocol.closing(protocol.sealed(made.contents[number])) as fd:
            client.segments([fd], first=number)
    client.draft(made.draft.build())
    client.commit()
    with client.attach("handmade") as attached:
        assert [bytes(m[:]) for m in attached.maps] == made.contents


@pytest.mark.parametrize("segments", [64, protocol.MAX_SEGMENTS])
def test_a_model_of_many_segments_is_published_and_attached(broker, client, cli, segments):
    broker.leaves_models = True
    made = Handmade(segments=segments, size=4096)
    made.publish(client)
    with client.attach("handmade") as attached:
        assert [bytes(m[:]) for m in attached.maps] == made.contents
    client.detach()
    assert cli("attach", "handmade", "--json", expect=0).json["segments"] == segments
    assert "intact" in cli("verify", "handmade", expect=0).text


# ---- what is repeated, out of order or senseless ----


def test_repeated_requests_are_answered_alike(broker, client):
    broker.leaves_models = True
    made = Handmade(segments=2)
    with broker.connect() as publisher:
        publisher.call(protocol.HELLO, protocol.hello(), request=1)
        assert made.begin(publisher, request=10) == made.begin(publisher, request=10) == made.begin(publisher, request=11)
        assert client.stat()["loading"] == 1
        made.segments(publisher)
        before = broker.fd_count()
        made.segments(publisher)
        wait_until(lambda: broker.fd_count() == before, "the first fds to be closed")
        publisher.draft(made.draft.build(), request=20)
        publisher.draft(made.draft.build(), request=20)
        first = publisher.commit(request=30)
        assert publisher.commit(request=30) == publisher.commit(request=31) == first
    assert client.stat()["commits"] == 1
    with client.attach("handmade", request=40) as one, client.attach("handmade", request=40) as two:
        assert (one.id, one.generation) == (two.id, two.generation) == first[:1] + (one.generation,)
        assert client.stat()["leases"] == 1 and client.stat()["attaches"] == 1
    assert refused(client.attach, "handmade", request=41).code == REFUSED
    client.detach(request=50)
    client.detach(request=50)
    assert client.stat()["leases"] == 0


def test_a_connection_attaches_again_after_it_has_detached(broker, client):
    broker.leaves_models = True
    Handmade().publish(client)
    for _ in range(3):
        client.attach("handmade").close()
        client.detach()
    assert client.stat()["attaches"] == 3


def test_one_connection_publishes_several_models_one_after_another(broker, client):
    broker.leaves_models = True
    for number in range(3):
        Handmade(f"m{number}").publish(client)
    assert [m["name"] for m in client.list()] == ["m0", "m1", "m2"]


def test_steps_out_of_order_are_refused_and_the_connection_goes_on(broker, client):
    made = Handmade()
    with protocol.closing(protocol.sealed(made.contents[0])) as fd:
        with contextlib.suppress(PermissionError):  # newer kernels carry no fds to who has claimed nothing
            assert "SEGMENTS without BEGIN" in refused(client.segments, [fd]).message
            assert "DRAFT without BEGIN" in refused(client.draft, made.draft.build()).message
        assert "COMMIT without BEGIN" in refused(client.commit).message
        made.begin(client)
        assert "DRAFT before segment 0" in refused(client.draft, made.draft.build()).message
        assert "COMMIT before a DRAFT" in refused(client.commit).message
        assert "publishes another model" in refused(Handmade("other").begin, client).message
        assert refused(client.segments, [fd], first=1).code == INVALID
        assert refused(client.segments, [fd], first=0xFFFFFFFF).code == INVALID
    client.ping()
    client.close()
    assert broker.becomes_empty()


@pytest.mark.parametrize("key, sizes, options, says", [
    ({}, [4096], {}, "the key is empty"),
    ({"a": "b"}, [4096, 0], {}, "segment 1"),
    ({"a": "b"}, [1 << 63, 1 << 63], {}, "64 bits"),
    ({"UPPER": "b"}, [4096], {}, "key field"),
    ({"a": "line\nbreak"}, [4096], {}, "control characters"),
    ({"a": "v" * 4097}, [4096], {}, "4096"),
    ({f"f{i}": "v" for i in range(65)}, [4096], {}, "64"),
    ({f"f{i:02}": "v" * 3000 for i in range(10)}, [4096], {}, "16384"),
    ({"a": "b"}, [4096], {"name": "bell\a"}, "control characters"),
])
def test_a_claim_that_makes_no_sense_is_refused(broker, client, key, sizes, options, says):
    failure = refused(client.begin, key, sizes, **options)
    assert failure.code == INVALID and says in failure.message, failure.message
    client.ping()
    assert broker.becomes_empty()


@pytest.mark.parametrize("visibility, code", [(3, PROTOCOL), (0xFFFFFFFF, PROTOCOL)])
def test_an_unknown_visibility_is_no_visibility(broker, client, visibility, code):
    assert refused(client.begin, {"a": "b"}, [4096], visibility=visibility).code == code
    assert broker.serves()


# ---- two publishers ----


def test_a_second_publisher_is_told_at_once_who_the_first_is(broker, client):
    made = Handmade()
    made.begin(client)
    with broker.connect() as second:
        failure = refused(made.begin, second)
        assert failure.code == BUSY and f"published by process {os.getpid()}" in failure.message
        late = refused(made.begin, second, wait_ms=30)
        assert late.code == BUSY
        second.ping()
    client.close()
    assert broker.becomes_empty()


def test_a_second_publisher_that_waits_is_told_when_the_first_has_committed(broker, client):
    broker.leaves_models = True
    made = Handmade()
    made.begin(client)
    with broker.connect() as second:
        request = second.send(protocol.BEGIN, protocol.begin(made.key, made.sizes, wait_ms=protocol.FOREVER))
        made.segments(client)
        client.draft(made.draft.build())
        client.commit()
        failure = refused(second.wait_for, protocol.BEGIN, request)
        assert failure.code == EXISTS and "generation 1" in failure.message
        second.ping()


def test_a_second_publisher_that_waits_takes_over_when_the_first_dies(broker):
    broker.leaves_models = True
    made = Handmade(seed=5)

    def first(ready):
        made.begin(broker.connect())
        ready()

    with broker.connect() as second:
        with child(first):
            request = second.send(protocol.BEGIN, protocol.begin(made.key, made.sizes, made.name, wait_ms=protocol.FOREVER))
        identity = struct.unpack("<Q", second.wait_for(protocol.BEGIN, request).body)[0]
        made.segments(second)
        second.draft(made.draft.build())
        assert second.commit()[0] == identity
        with second.attach("handmade") as attached:
            assert bytes(attached.maps[0][:]) == made.contents[0]


def test_of_many_waiting_publishers_exactly_one_takes_over(broker, client):
    made = Handmade()
    made.begin(client)
    waiting = [broker.connect() for _ in range(5)]
    for each in waiting:
        each.request = each.send(protocol.BEGIN, protocol.begin(made.key, made.sizes, wait_ms=protocol.FOREVER))
    for left in range(5, 0, -1):
        client.close()
        with broker.connect() as watcher:
            wait_until(lambda: watcher.stat()["loading"] == 1 and watcher.stat()["connections"] == left + 1,
                       "the next publisher to take over")
        client = next_owner(waiting)
    client.close()
    assert broker.becomes_empty()


def next_owner(waiting):
    """The one that has got its answer; taken out of the list."""
    ready, _, _ = select.select([w.sock for w in waiting], [], [], 60)
    assert len(ready) == 1
    owner = next(w for w in waiting if w.sock is ready[0])
    owner.wait_for(protocol.BEGIN, owner.request)
    waiting.remove(owner)
    return owner


def test_a_resident_key_is_not_published_again_unless_it_replaces(broker, client):
    broker.leaves_models = True
    made = Handmade()
    made.publish(client)
    assert refused(made.begin, client).code == EXISTS
    assert made.publish(client, flags=REPLACE)[1] == 2
    assert [m["generation"] for m in client.list()] == [2]


def test_a_replacement_that_is_given_up_leaves_the_old_one_as_it_was(broker, client):
    broker.leaves_models = True
    made = Handmade()
    made.publish(client)
    with broker.connect() as publisher:
        made.begin(publisher, flags=REPLACE)
        with broker.connect() as engine:
            engine.attach("handmade").close()
    wait_until(lambda: client.stat()["loading"] == 0, "the claim to go")
    client.attach("handmade").close()
    assert [m["state"] for m in client.list()] == [READY]
