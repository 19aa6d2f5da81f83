"""Keepers that misbehave, and what they and others may have."""
import contextlib
import signal
import socket

import pytest

import manifest
from harness import refused, told, wait_until
from models import Handmade, Kept
from protocol import (ATTACH, BEGIN, FOREVER, INVALID, KEPT, LOST, NOT_FOUND, PROTOCOL, REFUSED, SEGMENTS, Failure, begin,
                      closing, sealed, selector)
from users import connect_as


def test_a_keeper_that_sends_fds_is_refused_and_they_are_closed(broker, client):
    Kept().begin(client)
    before = broker.fd_count()
    with closing(sealed(size=2 << 20), sealed(size=2 << 20)) as fds:
        failure = refused(client.segments, fds)
    assert failure.code == REFUSED and "stand in its manifest" in failure.message
    wait_until(lambda: broker.fd_count() == before, "the fds to be closed")
    client.draft(Kept().draft.build())
    client.commit()
    assert refused(client.call, SEGMENTS, bytes(8)).code == PROTOCOL


def test_a_commit_that_is_sent_twice_is_answered_alike(broker, keeper):
    assert keeper.commit() == (keeper.id, keeper.generation)
    assert len(broker.models()) == 1


def test_a_keeper_publishes_nothing_else_on_its_connection(broker, client, keeper):
    for other in Kept("other"), keeper.made, Handmade("fds"):
        failure = refused(other.begin, keeper)
        assert failure.code == REFUSED and "keeps a model" in failure.message
    # Nor can it send fds any more; where the kernel does not see to that, there is no claim for them.
    with pytest.raises((Failure, PermissionError)):
        keeper.draft(keeper.made.draft.build())
    client.attach("kept").close()


def test_a_commit_without_a_draft_is_refused(broker, client):
    Kept().begin(client)
    assert "before a DRAFT" in refused(client.commit).message


@pytest.mark.parametrize("key", [{"model": "/m"}, {"model": "/m", "device": "host"}])
def test_host_memory_is_not_kept(broker, client, key):
    failure = refused(client.begin, key, [4096], flags=KEPT)
    assert failure.code == INVALID and failure.message.startswith("device: ")
    client.begin(key, [4096])


def test_an_unknown_flag_ends_the_connection(broker, client):
    assert refused(client.begin, {"model": "/m"}, [4096], flags=4).code == PROTOCOL


def one(handle, handle_kind=2, handle_bytes=None, device="GPU-0", size=2 << 20):
    made = Kept(segments=1)
    draft = manifest.Draft(made.key, made.name)
    return made, draft.segment(size, device=device, handle_kind=handle_kind, handle=handle, handle_bytes=handle_bytes)


@pytest.mark.parametrize("what, made, says", [
    ("no handle", one(b""), "segments[0].handle_bytes at offset"),
    ("a short one", one(b"x" * 63), "segments[0].handle_bytes at offset"),
    ("one between the two lengths", one(b"x" * 100), "segments[0].handle_bytes at offset"),
    ("a longer one than there is room", one(b"x" * 64, handle_bytes=129), "segments[0].handle_bytes at offset"),
    ("bytes behind it", one(b"x" * 65, handle_bytes=64), "segments[0].handle at offset"),
    ("an fd", one(b"", handle_kind=1), "handle kind 1"),
    ("another size", one(b"x" * 64, size=4 << 20), "4194304 bytes, handle kind 2; 2097152 bytes were promised"),
    ("the host's", one(b"x" * 64, device="host"), "segments[0].handle_kind at offset"),
    ("another GPU's", one(b"x" * 64, device="GPU-1"), "segments[0].device"),
])
def test_a_handle_that_is_none_is_refused_with_its_place(broker, client, what, made, says):
    kept, draft = made
    kept.begin(client)
    failure = refused(client.draft, draft.build())
    assert failure.code == INVALID and says in failure.message, (what, failure)
    client.draft(kept.draft.build())  # the claim stays


def test_two_segments_with_one_handle_are_refused(broker, client):
    made = Kept(segments=3, handles=[b"a" * 64, b"b" * 64, b"a" * 64])
    made.begin(client)
    assert "segments[2].handle at offset" in refused(client.draft, made.draft.build()).message


@pytest.mark.parametrize("segments", [1, 3])
def test_a_keeper_with_another_number_of_handles_is_refused(broker, client, segments):
    Kept().begin(client)
    made = Kept(segments=segments)
    assert f"the draft has {segments}, 2 were claimed" in refused(client.draft, made.draft.build()).message


def test_an_fd_publisher_cannot_hand_over_handles(broker, client):
    made = Kept(segments=1)
    made.begin(client, flags=0)
    with closing(sealed(size=2 << 20)) as fd:
        client.segments([fd])
    assert "handed over as an fd" in refused(client.draft, made.draft.build()).message


def test_a_claim_of_the_other_kind_is_no_repetition(broker, client):
    made = Kept()
    made.begin(client)
    made.begin(client)
    assert refused(made.begin, client, flags=0).code == REFUSED


# ---- users and their limits ----

@pytest.mark.usefixtures("other_users")
def test_what_a_dead_keeper_was_charged_is_given_back_at_once(start_broker):
    broker = start_broker("[broker]\nopen = all\n[access]\npublish = 1234\n[limits]\nmodels = 1\nbytes = 4M\nsegments = 0\n")
    for _ in range(3):
        with connect_as(1234, broker.directory) as keeper, connect_as(1234, broker.directory) as other:
            Kept().publish(keeper)  # no segment of the broker's is taken
            assert "holds 1 models" in refused(Kept("other").begin, other).message
            keeper.close()
            Kept("other").publish(other)
    assert broker.becomes_empty()


def test_of_what_comes_together_an_end_is_seen_first(start_broker):
    broker = start_broker("[limits]\nmodels = 1\n")
    with broker.connect() as keeper, broker.connect() as other:
        Kept().publish(keeper)
        broker.signal(signal.SIGSTOP)
        request = other.send(BEGIN, begin({"model": "/other"}, [4096]))
        keeper.close()
        broker.signal(signal.SIGCONT)
        other.wait_for(BEGIN, request)


@pytest.mark.usefixtures("other_users")
@pytest.mark.parametrize("more, may", [("", False), ("attach_gpu = 2000", True)])
def test_others_get_a_handle_only_where_they_may_have_a_gpus_memory(start_broker, more, may):
    broker = start_broker(f"[broker]\nopen = all\n[access]\nattach = all\n{more}\n")
    with broker.connect() as keeper, connect_as(2000, broker.directory) as stranger:
        Kept().publish(keeper, visibility=2)
        if may:
            assert stranger.attach("kept").kept
            keeper.close()
            assert told(stranger) == LOST
        else:
            assert refused(stranger.attach, "kept").code == NOT_FOUND
            keeper.close()
            # Nor is it told what it could not see.
            assert "keeper" not in refused(stranger.attach, "kept").message


# ---- chains ----

CHAIN = 250  # as long as one user's models allow


def deaf(client):
    """Told anything from now on, it is closed by the broker."""
    client.sock.shutdown(socket.SHUT_RD)


def test_a_chain_of_keepers_does_not_outgrow_the_brokers_stack(broker):
    """Each leases the model of the one before: the first one's end is told to the second, which ends by being told."""
    with contextlib.ExitStack() as stack:
        chain = [stack.enter_context(broker.connect()) for _ in range(CHAIN)]
        for i, keeper in enumerate(chain):
            Kept(f"link{i}", segments=1).publish(keeper)
            if i:
                keeper.attach(f"link{i - 1}").close()
        for keeper in chain:
            deaf(keeper)
        chain[0].close()
        assert broker.becomes_empty()
        assert broker.process.poll() is None


def test_a_chain_of_publishers_that_wait_for_each_other_does_neither(broker):
    with contextlib.ExitStack() as stack:
        chain = [stack.enter_context(broker.connect()) for _ in range(CHAIN)]
        for i, publisher in enumerate(chain):
            Handmade(f"link{i}").begin(publisher)
            if i:
                publisher.send(ATTACH, selector(f"link{i - 1}", wait_ms=FOREVER))
        with broker.connect() as last:  # all are parked once this one is answered
            last.ping()
        for publisher in chain:
            deaf(publisher)
        chain[0].close()
        assert broker.becomes_empty()
        assert broker.process.poll() is None
