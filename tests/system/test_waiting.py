"""Attaching to what is not there yet."""
import contextlib
import os

import pytest

import models
import protocol
from harness import child, finish, wait_until
from models import Handmade
from protocol import ATTACH, BUSY, FOREVER, MISMATCH, NOT_FOUND, TIMEOUT, Attached, Failure, selector


def refused(client, request):
    with pytest.raises(Failure) as caught:
        client.wait_for(ATTACH, request)
    return caught.value


def test_a_model_that_is_loading_is_not_attached_but_said_to_be_loading(broker, client):
    Handmade().begin(client)
    with broker.connect() as engine:
        failure = refused(engine, engine.send(ATTACH, selector("handmade")))
    assert failure.code == BUSY and f"loaded by process {os.getpid()}" in failure.message
    client.close()
    assert broker.becomes_empty()


def test_an_attach_that_waits_for_a_loading_model_gets_it_with_the_commit(broker, client):
    broker.leaves_models = True
    made = Handmade()
    made.begin(client)
    engines = [broker.connect() for _ in range(5)]
    for engine in engines:
        engine.request = engine.send(ATTACH, selector("handmade", wait_ms=FOREVER))
    made.segments(client)
    client.draft(made.draft.build())
    client.commit()
    for engine in engines:
        with Attached(engine.wait_for(ATTACH, engine.request)) as attached:
            assert bytes(attached.maps[0][:]) == made.contents[0]
    assert client.stat()["leases"] == 5
    for engine in engines:
        engine.close()


def test_an_attach_that_waits_too_long_says_how_long_and_for_whom(broker, client):
    Handmade().begin(client)
    with broker.connect() as engine:
        failure = refused(engine, engine.send(ATTACH, selector("handmade", wait_ms=40)))
        assert failure.code == TIMEOUT
        assert "waited 40 ms" in failure.message and f"process {os.getpid()}" in failure.message
        engine.ping()
    client.close()
    assert broker.becomes_empty()


def test_an_attach_may_wait_for_a_model_that_nobody_has_begun(broker, client):
    broker.leaves_models = True
    with broker.connect() as engine:
        request = engine.send(ATTACH, selector("handmade", wait_ms=FOREVER))
        Handmade("another").publish(client)
        made = Handmade()
        made.publish(client)
        with Attached(engine.wait_for(ATTACH, request)) as attached:
            assert attached.manifest.name == "handmade"


def test_waiting_in_vain_for_what_nobody_begins_ends_in_time(broker, client):
    failure = refused(client, client.send(ATTACH, selector("handmade", wait_ms=40)))
    assert failure.code == TIMEOUT and "waited 40 ms" in failure.message and "handmade" in failure.message
    assert broker.serves()


def test_who_waits_for_nobody_then_for_a_publisher_is_told_of_its_death(broker):
    with broker.connect() as engine:
        request = engine.send(ATTACH, selector("handmade", wait_ms=FOREVER))

        def publisher(ready):
            Handmade().begin(broker.connect())
            ready()

        with child(publisher) as pid:
            pass
        failure = refused(engine, request)
        assert failure.code == NOT_FOUND and f"process {pid}" in failure.message
        engine.ping()
    assert broker.becomes_empty()


def test_a_wait_outlives_changes_that_do_not_concern_it(broker, client):
    broker.leaves_models = True
    with broker.connect() as engine:
        request = engine.send(ATTACH, selector(key={"model": "/wanted"}, wait_ms=FOREVER))
        for number in range(10):
            Handmade(f"m{number}").publish(client)
            client.evict(f"m{number}")
        Handmade("wanted", key={"model": "/wanted"}).publish(client)
        Attached(engine.wait_for(ATTACH, request)).close()


def test_waiting_for_another_variant_of_a_resident_model_ends_in_the_mismatch(broker, client):
    broker.leaves_models = True
    Handmade("bf16", key={"model": "/m", "dtype": "bf16"}).publish(client)
    with broker.connect() as engine:
        failure = refused(engine, engine.send(ATTACH, selector(key={"model": "/m", "dtype": "fp8"}, wait_ms=40)))
        assert failure.code == MISMATCH and (failure.field, failure.got) == ("dtype", "bf16")
        request = engine.send(ATTACH, selector(key={"model": "/m", "dtype": "fp8"}, wait_ms=FOREVER))
        Handmade("fp8", key={"model": "/m", "dtype": "fp8"}).publish(client)
        with Attached(engine.wait_for(ATTACH, request)) as attached:
            assert attached.manifest.name == "fp8"


def test_who_hangs_up_while_waiting_is_forgotten(broker, client):
    for _ in range(10):
        with broker.connect() as engine:
            engine.send(ATTACH, selector("handmade", wait_ms=FOREVER))
    wait_until(lambda: client.stat()["connections"] == 1, "the connections to go")
    Handmade().publish(client)
    assert client.stat()["leases"] == 0
    client.evict("handmade")


def test_what_is_sent_while_waiting_ends_the_connection(broker, client):
    """Left unread it could be the connection's own socket, which would then live for ever."""
    with broker.connect() as engine:
        engine.send(ATTACH, selector("handmade", wait_ms=FOREVER))
        engine.send(protocol.PING)
        failure = engine.last_words()
    assert failure.code == protocol.PROTOCOL and "before the reply to the last request" in failure.message
    assert broker.serves()


def test_a_connection_that_was_sent_over_itself_ends_with_its_process(broker, client):
    """A publisher may send fds; one of them is its own socket, and it waits for ever."""
    model = Handmade()

    def zombie(ready):
        with broker.connect() as engine:
            model.begin(engine)
            engine.send(ATTACH, selector("nothing", wait_ms=FOREVER))
            with contextlib.suppress(OSError):
                engine.send_raw(b"x", [engine.sock.fileno()])
            ready()

    with child(zombie):
        pass
    assert broker.becomes_empty()
    wait_until(lambda: client.stat()["connections"] == 1, "the connection to end")


def test_the_command_waits_for_a_model_that_is_loaded_meanwhile(broker, cli, small):
    broker.leaves_models = True
    with cli.running("attach", small, "--wait", "forever", "--json") as engine:
        wait_until(lambda: broker.stat()["connections"] >= 2, "the command to wait")
        cli("load", small, expect=0)
        done = finish(engine)
    assert done.status == 0 and done.json["sources"] == "same"


def test_the_command_says_that_it_has_waited_in_vain(broker, cli):
    late = cli("attach", "nobody", "--wait", 50, expect=1)
    assert "waited 50 ms" in late.err
    assert broker.serves()


def test_a_second_load_is_refused_or_waits_for_the_first(broker, client, cli, small):
    broker.leaves_models = True
    key = {"device": "host", "layout": "checkpoint", "model": os.path.realpath(small)}
    Handmade("first", key=key).begin(client)
    busy = cli("load", small, expect=6)
    assert f"being published by process {os.getpid()}" in busy.err
    with cli.running("load", small, "--wait", "forever", "--json") as second:
        wait_until(lambda: broker.stat()["connections"] >= 3, "the second load to wait")
        client.close()
        done = finish(second)
    assert done.status == 0 and done.json["already_resident"] is False
    assert done.json["tensors"] == len(models.small_tensors())
