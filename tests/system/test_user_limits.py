"""What one user may hold, counted for each and named when it is reached."""
import pytest

import protocol
from harness import refused, turned_away, wait_until
from models import Handmade
from protocol import REFUSED, Failure
from users import connect_as, dial_as

A, B = 1234, 1235

pytestmark = pytest.mark.usefixtures("other_users")


LIMITS = """
[broker]
open = all
[access]
publish = 1234, 1235
[limits]
connections = 20
models = 4
segments = 10
bytes = 64K
[limits 1235]
models = 2
"""


def test_limits_are_counted_for_each_user_and_named(start_broker):
    broker = start_broker(LIMITS)

    def fill(uid, sizes, says, count):
        held = [connect_as(uid, broker.directory) for _ in range(count + 1)]
        for number in range(count):
            held[number].begin({"n": str(number)}, sizes)
        failure = refused(held[count].begin, {"n": "last"}, sizes)
        assert failure.code == REFUSED and f"uid {uid}" in failure.message and says in failure.message
        assert "[limits]" in failure.message
        return held

    first = fill(A, [1], "holds 4 models", 4)
    second = fill(B, [1], "holds 2 models", 2)
    for client in (*first, *second):
        client.close()
    assert broker.becomes_empty()
    for client in fill(A, [1] * 4, "segments", 2):
        client.close()
    assert broker.becomes_empty()
    for client in fill(A, [30000], "bytes", 2):
        client.close()
    assert broker.becomes_empty()
    with connect_as(A, broker.directory) as client:
        assert refused(client.begin, {"n": "giant"}, [65537]).code == REFUSED
        client.begin({"n": "fits"}, [65536])


def test_one_users_connections_do_not_shut_out_another(start_broker):
    broker = start_broker(LIMITS)
    held = [connect_as(A, broker.directory) for _ in range(20)]
    failure = turned_away(dial_as(A, broker.directory))
    assert f"uid {A} has 20 connections open, its limit" in failure.message
    connect_as(B, broker.directory).close()
    assert broker.serves()
    held.pop().close()
    wait_until(lambda: not_turned_away(broker, A), "a connection to be free again")
    for client in held:
        client.close()


def not_turned_away(broker, uid):
    try:
        connect_as(uid, broker.directory).close()
        return True
    except (Failure, protocol.Closed):
        return False


def test_what_is_resident_is_charged_to_its_owner_until_the_last_lease(start_broker):
    broker = start_broker(LIMITS)
    with connect_as(A, broker.directory) as a, connect_as(A, broker.directory) as holder:
        Handmade("big", size=65536).publish(a)
        holder.attach("big").close()
        assert a.evict("big", protocol.FORCE) == 1
        assert "holds 65536 bytes, and 1 more" in refused(a.begin, {"n": "more"}, [1]).message
        holder.close()
        wait_until(lambda: a.stat()["bytes"] == 0, "the charge to go")
        a.begin({"n": "more"}, [1])
    assert broker.becomes_empty()
