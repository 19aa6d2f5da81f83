"""Models whose memory a keeper holds, as the broker sees them: handles in the manifest, no fds, and a connection that is
the model. No driver is needed for that; test_keeper_gpu.py has one."""
import contextlib
import os
import signal

import pytest

import manifest
from harness import child, refused, told, wait_until
from models import Kept
from protocol import (ATTACH, BUSY, DRAIN, DRAINING, EVICT, EVICTED, FORCE, FOREVER, LOST, MODEL_KEPT, NOT_FOUND,
                      READY, RELEASED, REPLACE, Attached, Closed, Failure, closing, sealed, selector)


def says_nothing(client):
    client.ping()  # its reply would come after whatever was said before
    return client.events == []


def lost(failure, pid=None):
    assert failure.code == NOT_FOUND
    assert f"its keeper, process {pid or os.getpid()}, has ended, and the memory with it" in failure.message
    return True


# ---- living ----

def test_a_kept_model_is_attached_by_its_handles_and_holds_one_fd(broker, client, keeper):
    stat = client.stat()
    assert (stat["models"], stat["fds"], stat["bytes"]) == (1, 1, sum(keeper.made.sizes))
    with client.attach("kept") as attached:
        assert attached.kept and attached.handles == keeper.made.handles and attached.segment_fds == []
        assert (attached.id, attached.generation) == (keeper.id, keeper.generation)
        assert attached.manifest.header["publisher_pid"] == os.getpid()
    listed = client.model("kept")
    assert (listed["flags"], listed["publisher_pid"], listed["state"]) == (MODEL_KEPT, os.getpid(), READY)
    assert says_nothing(keeper)


def test_handles_of_both_lengths_arrive_whole(broker, client):
    with broker.connect() as keeper:
        made = Kept(handle_bytes=128)
        made.publish(keeper)
        with client.attach("kept") as attached:
            assert attached.handles == made.handles


def test_a_keeper_is_not_idle(start_broker):
    broker = start_broker("[timeouts]\nidle_ms = 100\n")
    with broker.connect() as keeper:
        Kept().publish(keeper)
        with pytest.raises(TimeoutError):
            keeper.receive(0.5)
        assert broker.models()[0]["state"] == READY


def test_a_keeper_may_look_attach_and_detach_like_anybody(broker, keeper):
    keeper.attach("kept").close()
    assert keeper.stat()["leases"] == 1
    keeper.detach()
    keeper.attach("kept").close()
    assert keeper.evict("kept", DRAIN) == 1
    keeper.close()  # its lease, its model
    assert broker.becomes_empty()


# ---- the keeper's end ----

def test_a_keepers_end_ends_the_model_and_says_who_it_was(broker, client, keeper):
    keeper.close()
    assert lost(refused(client.attach, "kept"))
    assert lost(refused(client.attach, keeper_key_prefix(keeper)))
    assert lost(refused(client.attach, "", key=keeper.made.key))
    assert "nothing is resident" in refused(client.attach, "other").message
    assert broker.becomes_empty()
    assert f"the keeper of uid {os.geteuid()}'s model kept" in broker.log


def keeper_key_prefix(keeper):
    return manifest.key_id(keeper.made.key)[:8]


def test_holders_are_told_and_nobody_attaches_any_more(broker, client, keeper):
    with broker.connect() as first, broker.connect() as second:
        first.attach("kept").close()
        second.attach("kept").close()
        keeper.close()
        assert told(first) == LOST and told(second) == LOST
        assert lost(refused(client.attach, "kept"))
        model = client.model("kept")
        assert (model["state"], model["leases"], client.stat()["fds"]) == (DRAINING, 2, 0)
        assert client.stat()["bytes"] == sum(keeper.made.sizes)  # until they let go
        first.detach()
        second.close()
        assert broker.becomes_empty()
        assert lost(refused(client.attach, "kept"))


def test_a_model_that_is_there_again_was_never_lost(broker, client, keeper):
    keeper.close()
    with broker.connect() as again:
        keeper.made.publish(again)
        client.attach("kept").close()
        client.detach()
        client.evict("kept")
        assert "nothing is resident" in refused(client.attach, "kept").message


def test_only_the_last_lost_models_are_remembered(broker, client):
    for i in range(20):
        with broker.connect() as keeper:
            Kept(f"kept{i}").publish(keeper)
    wait_until(broker.is_empty, "the models to go")
    assert "nothing is resident" in refused(client.attach, "kept0").message
    assert lost(refused(client.attach, "kept19"))


def test_a_killed_keeper_races_with_attaches_and_none_gets_half_a_model(broker, client):
    """Attached, and then told; or told at once. After the kill nobody attaches."""
    attached = missed = 0
    for i in range(60):
        def keep(ready, name=f"kept{i}"):
            keeper = broker.connect()
            Kept(name).publish(keeper)
            ready()

        with child(keep) as pid, contextlib.ExitStack() as stack:
            engines = [stack.enter_context(broker.connect()) for _ in range(4)]
            requests = [engine.send(ATTACH, selector(f"kept{i}")) for engine in engines[:2]]
            os.kill(pid, signal.SIGKILL)
            requests += [engine.send(ATTACH, selector(f"kept{i}")) for engine in engines[2:]]
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            assert lost(refused(client.attach, f"kept{i}"), pid)
            for engine, request in zip(engines, requests):
                try:
                    with Attached(engine.wait_for(ATTACH, request)) as got:
                        assert got.kept and len(got.handles) == 2
                    if engine.events == []:
                        assert told(engine) == LOST
                    attached += 1
                except Failure as failure:
                    assert lost(failure, pid)
                    missed += 1
    assert attached > 0 and attached + missed == 240
    assert broker.becomes_empty()


def test_who_waits_for_a_keeper_that_dies_before_its_commit_is_told(broker, client):
    with broker.connect() as keeper:
        Kept().begin(keeper)
        request = client.send(ATTACH, selector("kept", wait_ms=FOREVER))
        wait_until(lambda: broker.stat()["loading"] == 1, "the claim")
        keeper.close()
        with pytest.raises(Failure, match="ended without committing") as failure:
            client.wait_for(ATTACH, request)
        assert failure.value.code == NOT_FOUND
    assert broker.becomes_empty()


def test_who_waits_for_a_lost_model_gets_the_next_one(broker, client, keeper):
    keeper.close()
    request = client.send(ATTACH, selector("kept", wait_ms=FOREVER))
    with broker.connect() as again:
        generation = keeper.made.publish(again)[1]
        with Attached(client.wait_for(ATTACH, request)) as attached:
            assert attached.generation == generation
        client.detach()


def test_the_brokers_end_is_the_keepers(start_broker):
    broker = start_broker()
    with broker.connect() as keeper:
        Kept().publish(keeper)
        broker.signal(signal.SIGTERM)
        with pytest.raises(Closed):
            keeper.receive()
        broker.process.wait()
        broker.process = None


# ---- eviction, draining, replacement ----

def test_an_evicted_models_keeper_is_told_and_may_publish_again(broker, client, keeper):
    client.evict("kept")
    assert told(keeper) == RELEASED
    assert broker.becomes_empty()
    assert "nothing is resident" in refused(client.attach, "kept").message
    keeper.made.publish(keeper)
    client.attach("kept").close()
    client.detach()
    client.evict("kept")


@pytest.mark.parametrize("mode", [DRAIN, FORCE])
def test_the_keeper_stays_until_the_last_lease_has_ended(broker, client, keeper, mode):
    with broker.connect() as first, broker.connect() as second:
        first.attach("kept").close()
        second.attach("kept").close()
        assert refused(client.evict, "kept").code == BUSY
        assert client.evict("kept", mode) == 2
        assert "takes no new attach" in refused(client.attach, "kept").message
        if mode == FORCE:
            assert told(first) == EVICTED and told(second) == EVICTED
        first.detach()
        assert says_nothing(keeper) and client.stat()["bytes"] == sum(keeper.made.sizes)
        second.close()
        assert told(keeper) == RELEASED
    assert broker.becomes_empty()


def test_draining_with_a_wait_ends_with_the_keeper(broker, client, keeper):
    with broker.connect() as holder:
        holder.attach("kept").close()
        request = client.send(EVICT, b"\1\0\0\0\0\0\0\0" + selector("kept", wait_ms=FOREVER))
        wait_until(lambda: broker.models()[0]["state"] == DRAINING, "the model to drain")
        keeper.close()
        assert told(holder) == LOST
        holder.detach()
        client.wait_for(EVICT, request)
    assert broker.becomes_empty()


def test_holders_of_a_model_that_was_forced_out_still_learn_of_the_keepers_end(broker, client, keeper):
    with broker.connect() as holder:
        holder.attach("kept").close()
        client.evict("kept", FORCE)
        keeper.close()
        assert told(holder) == EVICTED and told(holder) == LOST
    assert broker.becomes_empty()


def test_a_replaced_keeper_goes_with_its_last_lease(broker, client, keeper):
    with broker.connect() as second, broker.connect() as holder, broker.connect() as third:
        holder.attach("kept").close()
        assert keeper.made.publish(second, flags=REPLACE)[1] > keeper.generation
        assert says_nothing(keeper)
        holder.detach()
        assert told(keeper) == RELEASED
        keeper.made.publish(third, flags=REPLACE)
        assert told(second) == RELEASED  # nobody had it
        # A model with fds replaces a kept one, too.
        second.begin(keeper.made.key, keeper.made.sizes, name="kept", flags=REPLACE)
        draft = manifest.Draft(keeper.made.key, "kept")
        for size in keeper.made.sizes:
            draft.segment(size, device="GPU-0")
        with closing(*[sealed(size=size) for size in keeper.made.sizes]) as fds:
            second.segments(fds)
        second.draft(draft.build())
        second.commit()
        assert told(third) == RELEASED
        client.evict("kept")


def test_a_keeper_that_ends_after_it_was_replaced_takes_nothing_along(broker, client, keeper):
    with broker.connect() as second, broker.connect() as holder:
        holder.attach("kept").close()
        keeper.made.publish(second, flags=REPLACE)
        keeper.close()
        assert told(holder) == LOST
        with client.attach("kept") as attached:
            assert attached.generation > keeper.generation
        client.detach()
