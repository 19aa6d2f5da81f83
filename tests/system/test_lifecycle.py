"""From load to the last lease: what users see."""
import os
import signal

import pytest

import models
from harness import finish, wait_until
from protocol import ALL, DRAIN, DRAINING, EVICTED, FORCE, IDLE, READY, Attached, Failure, BUSY, NOT_FOUND, REFUSED


def test_a_loaded_model_is_listed_with_what_it_is(broker, cli, resident):
    listed = cli("ls", "--json", expect=0).json["models"]
    assert len(listed) == 1
    model = listed[0]
    assert (model["name"], model["state"], model["leases"], model["holders"]) == ("small", "ready", 0, [])
    assert model["key"] == {"device": "host", "layout": "checkpoint", "model": os.path.realpath(resident)}
    assert model["tensors"] == len(models.small_tensors()) and model["owner_uid"] == os.geteuid()
    assert "small" in cli("ls", expect=0).text
    assert broker.serves()


def test_a_second_load_of_the_same_files_finds_them_resident(broker, cli, resident):
    again = cli("load", resident, "--json", expect=0).json
    assert again["already_resident"] is True and again["generation"] == 1
    assert len(broker.models()) == 1


@pytest.mark.parametrize("way", ["path", "relative path", "link", "name", "key prefix", "capital key prefix", "whole key"])
def test_a_model_is_attached_by(way, broker, cli, folder, resident):
    key_id = broker.models()[0]["key_id"]
    os.symlink(resident, folder / "link")
    model = {"path": resident, "relative path": "./small", "link": folder / "link", "name": "small",
             "key prefix": key_id[:4], "capital key prefix": key_id[:12].upper(), "whole key": key_id}[way]
    facts = cli("attach", model, "--json", cwd=folder, expect=0).json
    assert facts["key_id"] == key_id and facts["name"] == "small"
    assert facts["sources"] == ("same" if "path" in way and "key" not in way or way == "link" else "unchecked")
    wait_until(lambda: broker.stat()["leases"] == 0, "the lease to end")


def test_three_digits_of_a_key_are_too_few(broker, cli, resident):
    prefix = broker.models()[0]["key_id"][:3]
    refused = cli("attach", prefix, expect=3)
    assert "resident for you" in refused.err and "small" in refused.err


def test_an_unknown_name_is_answered_with_what_is_there(cli, resident):
    refused = cli("attach", "nonsense", expect=3)
    assert "no model nonsense" in refused.err and "small" in refused.err


def test_an_empty_broker_says_how_to_load(cli):
    assert "ipc-cache load" in cli("attach", "anything", expect=3).err


def test_a_holder_is_listed_until_it_lets_go(broker, cli, resident):
    with cli.holding("small") as holder:
        model = cli("ls", "--json", expect=0).json["models"][0]
        assert model["leases"] == 1
        assert [(h["pid"], h["uid"]) for h in model["holders"]] == [(holder.pid, os.geteuid())]
        holder.stdin.close()
        assert holder.wait(60) == 0
    wait_until(lambda: broker.stat()["leases"] == 0, "the lease to end")


def test_eviction_is_refused_while_leased_and_names_the_holder(broker, cli, resident):
    with cli.holding("small") as holder:
        refused = cli("evict", "small", expect=6)
        assert f"leased by process {holder.pid}" in refused.err and "force" in refused.err
        assert broker.models()[0]["state"] == READY
    cli("evict", "small", expect=0)
    assert broker.becomes_empty()


def test_a_drained_model_takes_no_attach_and_goes_with_its_last_lease(broker, cli, resident):
    with cli.holding("small") as holder:
        said = cli("evict", "small", "--drain", "--json", expect=0).json
        assert (said["state"], said["name"], [h["pid"] for h in said["holders"]]) == ("draining", "small", [holder.pid])
        assert broker.models()[0]["state"] == DRAINING
        late = cli("attach", "small", expect=3)
        assert "takes no new attach" in late.err and "1 left" in late.err
        assert broker.stat()["bytes"] > 0
        holder.kill()
    assert broker.becomes_empty()


def test_draining_with_a_wait_returns_when_the_model_is_gone(broker, cli, resident):
    with cli.holding("small") as holder:
        with cli.running("evict", "small", "--drain", "--wait", "forever", "--json") as evict:
            wait_until(lambda: broker.models()[0]["state"] == DRAINING, "the model to drain")
            assert evict.poll() is None
            holder.kill()
            ended = finish(evict)
            assert ended.status == 0 and ended.json["state"] == "gone" and ended.json["id"] == 1
    assert broker.becomes_empty()


def test_draining_with_a_wait_that_ends_says_so_and_drains_on(broker, cli, resident):
    with cli.holding("small"):
        late = cli("evict", "small", "--drain", "--wait", 50, expect=1)
        assert "still has 1 leases after 50 ms" in late.err
        assert broker.models()[0]["state"] == DRAINING
    assert broker.becomes_empty()


def test_force_tells_the_holder_whose_mapping_stays_and_whose_bytes_stay_charged(broker, client, resident):
    with broker.connect() as holder, holder.attach("small") as attached:
        before = [bytes(m[:]) for m in attached.maps]
        charged = client.stat()["bytes"]
        fds = broker.fd_count()
        assert client.evict("small", FORCE) == 1
        assert holder.receive().type == EVICTED
        assert [bytes(m[:]) for m in attached.maps] == before
        stat = client.stat()
        assert (stat["models"], stat["leases"], stat["bytes"]) == (1, 1, charged)
        wait_until(lambda: broker.fd_count() < fds, "the broker to close the model's fds")
        with pytest.raises(Failure) as refused:
            client.attach("small")
        assert refused.value.code == NOT_FOUND
        holder.detach()
        assert broker.becomes_empty()
        assert [bytes(m[:]) for m in attached.maps] == before


def test_the_command_that_holds_ends_when_its_model_is_evicted_by_force(broker, cli, resident):
    with cli.holding("small") as holder:
        cli("evict", "small", "--force", expect=0)
        ended = finish(holder)
        assert ended.status == 6 and "evicted by force" in ended.err
    assert broker.becomes_empty()


def test_force_without_a_lease_is_gone_at_once(broker, cli, resident):
    assert cli("evict", "small", "--force", "--json", expect=0).json["state"] == "gone"
    assert broker.becomes_empty()


def test_a_killed_engine_gives_its_lease_back_and_the_weights_stay(broker, cli, resident):
    with cli.holding("small") as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait(60)
    wait_until(lambda: broker.stat()["leases"] == 0, "the lease to end")
    assert broker.models()[0]["state"] == READY
    assert cli("attach", "small", "--json", expect=0).json["generation"] == 1
    assert "intact" in cli("verify", "small", expect=0).text


def test_many_engines_hold_one_model_and_it_is_held_once(broker, client, resident):
    size = client.stat()["bytes"]
    holders = [broker.connect() for _ in range(20)]
    attached = [holder.attach("small") for holder in holders]
    stat = client.stat()
    assert (stat["leases"], stat["bytes"], stat["models"]) == (20, size, 1)
    inodes = {os.fstat(a.segment_fds[0]).st_ino for a in attached}
    assert len(inodes) == 1
    for each in (*attached, *holders):
        each.close()
    wait_until(lambda: client.stat()["leases"] == 0, "the leases to end")


def test_a_lease_lives_in_a_forked_child_until_it_closes_the_socket_too(broker, client, resident):
    holder = broker.connect()
    with holder.attach("small"):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        os.close(reader)
        holder.close()
        client.ping()
        assert client.stat()["leases"] == 1
        os.close(writer)
        os.waitpid(child, 0)
        wait_until(lambda: client.stat()["leases"] == 0, "the lease to end")


def test_replacing_makes_a_new_generation_and_the_old_one_goes_with_its_lease(broker, cli, resident):
    with cli.holding("small"):
        assert cli("load", resident, "--name", "small", "--replace", "--json", expect=0).json["generation"] == 2
        states = {m["generation"]: m["state"] for m in broker.models()}
        assert states == {1: DRAINING, 2: READY}
        assert cli("attach", "small", "--json", expect=0).json["generation"] == 2
    wait_until(lambda: [m["generation"] for m in broker.models()] == [2], "the old generation to go")
    assert cli("attach", "small", "--json", expect=0).json["generation"] == 2


def test_several_generations_live_side_by_side_while_they_are_held(broker, client):
    broker.leaves_models = True
    held = []
    for generation in range(1, 6):
        made = models.Handmade(seed=generation)
        with broker.connect() as publisher:
            assert made.publish(publisher, flags=1)[1] == generation
        holder = broker.connect()
        held.append((holder, holder.attach("handmade"), made))
    for generation, (_, attached, made) in enumerate(held, 1):
        assert attached.generation == generation
        assert bytes(attached.maps[0][:]) == made.contents[0]
    assert len(client.list()) == 5
    for holder, attached, _ in held:
        attached.close()
        holder.close()
    wait_until(lambda: len(client.list()) == 1, "the old generations to go")


def test_two_models_of_one_name_are_ambiguous_and_said_to_be(broker, client, cli):
    broker.leaves_models = True
    for number in range(2):
        with broker.connect() as publisher:
            models.Handmade("twin", key={"model": f"/twin/{number}"}, seed=number).publish(publisher)
    for ask in (client.attach, client.evict):
        with pytest.raises(Failure) as refused:
            ask("twin")
        assert refused.value.code == REFUSED and "several models match" in refused.value.message
    assert "name one by more of its key" in cli("attach", "twin", expect=6).err
    with client.attach("twin", {"model": "/twin/1"}) as attached:
        assert attached.manifest.fields == {"model": "/twin/1"}


def test_a_mismatch_names_the_field_and_both_values(broker, client):
    broker.leaves_models = True
    with broker.connect() as publisher:
        models.Handmade(key={"model": "/m", "dtype": "bf16", "tp": "1"}).publish(publisher)
    for ask in (client.attach, lambda key: client.evict(key=key)):
        with pytest.raises(Failure) as refused:
            ask(key={"model": "/m", "dtype": "fp8"})
        failure = refused.value
        assert (failure.code, failure.field, failure.expected, failure.got) == (4, "dtype", "fp8", "bf16")
        assert "dtype: expected fp8, got bf16" in failure.message
    with pytest.raises(Failure) as refused:
        client.attach(key={"model": "/m", "quantization": "awq"})
    assert (refused.value.field, refused.value.expected, refused.value.got) == ("quantization", "awq", "(none)")
    with pytest.raises(Failure) as refused:
        client.attach(key={"model": "/m", "dtype": "bf16"}, exact=True)
    assert (refused.value.code, refused.value.field, refused.value.expected) == (4, "tp", "(none)")
    assert client.stat()["mismatches"] == 4
    with client.attach(key={"model": "/m", "dtype": "bf16"}):
        pass


def test_the_holder_list_is_cut_and_the_count_is_not(broker, client, resident):
    holders = [broker.connect() for _ in range(70)]
    for holder in holders:
        holder.attach("small").close()
    model = client.list()[0]
    assert (model["leases"], len(model["holders"])) == (70, 64)
    with pytest.raises(Failure) as refused:
        client.evict("small", IDLE)
    assert refused.value.code == BUSY and "and 62 more" in refused.value.message
    assert client.evict("small", DRAIN) == 70
    for holder in holders:
        holder.close()
    assert broker.becomes_empty()


def test_a_list_of_many_models_comes_in_pages(broker, client):
    broker.leaves_models = True
    value = "v" * 4000
    for number in range(40):
        models.Handmade(f"model-{number}", segments=0, key={"n": str(number), "a": value}).publish(client)
    listed = client.list()
    assert [m["name"] for m in listed] == [f"model-{n}" for n in range(40)]
    assert [m["id"] for m in listed] == sorted({m["id"] for m in listed})


def test_a_model_without_tensors_can_be_published_and_attached(broker, client):
    broker.leaves_models = True
    models.Handmade("nothing", segments=0).publish(client, visibility=ALL)
    with client.attach("nothing") as attached:
        assert isinstance(attached, Attached) and attached.manifest.tensors == []


def test_a_load_does_not_pass_over_a_name_or_a_visibility_that_the_resident_model_does_not_have(broker, cli, resident):
    error = cli("load", resident, "--name", "other", "--json", expect=4).json["error"]
    assert (error["field"], error["expected"], error["got"]) == ("name", "other", "small")
    assert "--replace" in cli("load", resident, "--visible", "all", expect=4).err
    assert cli("load", resident, "--name", "small", "--visible", "owner", "--json", expect=0).json["already_resident"]
    cli("load", resident, "--name", "other", "--visible", "all", "--replace", expect=0)
    assert [m["name"] for m in broker.models()] == ["other"]
