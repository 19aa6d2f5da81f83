"""Several real users, one broker: who sees, gets, evicts and publishes what. The broker runs as root."""
import grp
import os

import pytest

import protocol
from harness import refused, turned_away
from models import Handmade
from protocol import ALL, GROUP, NOT_FOUND, OWNER, REFUSED, Client
from users import as_user, connect_as, dial_as, user_prefix

A, B, C, GROUP_ID = 1234, 1235, 1236, 4321

pytestmark = pytest.mark.usefixtures("other_users")


def config(**access):
    lines = "".join(f"{name} = {value}\n" for name, value in access.items())
    return f"[broker]\nopen = all\n[access]\n{lines}"


def contents(client, *arguments, **options):
    """The bytes that this client gets; detached afterwards."""
    with client.attach(*arguments, **options) as attached:
        found = [bytes(m[:]) for m in attached.maps]
    client.detach()
    return found


# ---- who gets in ----


def test_another_user_is_stopped_by_the_directory(broker, cli):
    with pytest.raises(PermissionError):
        dial_as(A, broker.directory)
    for verb in (["ls"], ["ping"], ["attach", "x"]):
        stopped = cli(*verb, prefix=user_prefix(A), expect=6)
        assert broker.directory in stopped.err and "ermission denied" in stopped.err
    assert broker.serves()


def test_in_a_widened_directory_another_user_is_stopped_by_policy(start_broker):
    broker = start_broker(config(attach=B))
    failure = turned_away(dial_as(A, broker.directory))
    assert failure.code == REFUSED and f"uid {A}" in failure.message and "[access]" in failure.message
    stopped = broker.cli("ls", prefix=user_prefix(A), expect=6)
    assert f"uid {A}" in stopped.err and "list it under attach, publish" in stopped.err and "[access]" in stopped.err
    assert f"refused uid {A}" in broker.log
    broker.cli("ls", prefix=user_prefix(B), expect=0)
    assert broker.serves()


def test_opening_the_directory_alone_admits_nobody(start_broker):
    broker = start_broker("[broker]\nopen = all\n")
    assert turned_away(dial_as(A, broker.directory)).code == REFUSED
    assert broker.serves()


@pytest.mark.parametrize("listed, groups, admitted", [
    (f"{A}", (), True), (f"{B}, {A}", (), True), (f"{B} {A}", (), True), ("all", (), True), (f"@{GROUP_ID}", (), False),
    (f"@{GROUP_ID}", (GROUP_ID,), True), (f"@{GROUP_ID}", (1, 2, 3, GROUP_ID), True),
    (f"{B}\nattach = {C}, {A}\nattach = 4000", (), True),
    (f"@{GROUP_ID}", tuple(range(10000, 10200)) + (GROUP_ID,), True), (f"{B}", (A, B), False), (f"@{A}", (), True),
])
def test_users_and_groups_are_admitted_as_they_are_listed(start_broker, listed, groups, admitted):
    broker = start_broker(config(attach=listed))
    sock = dial_as(A, broker.directory, groups=groups)
    if admitted:
        with Client(sock) as client:
            client.ping()
    else:
        assert turned_away(sock).code == REFUSED
    assert broker.serves()


@pytest.mark.parametrize("opened, group, modes", [
    ("owner", 0, (0o700, 0o600)), (f"@{GROUP_ID}", GROUP_ID, (0o750, 0o660)), ("all", 0, (0o711, 0o666))])
def test_directory_and_socket_have_exactly_the_modes_of_their_openness(start_broker, opened, group, modes):
    broker = start_broker(f"[broker]\nopen = {opened}\n[access]\nattach = {A}\n")
    directory, sock = os.stat(broker.directory), os.stat(f"{broker.directory}/broker.sock")
    assert (directory.st_mode & 0o7777, sock.st_mode & 0o7777) == modes
    assert directory.st_gid == sock.st_gid == group or opened != f"@{GROUP_ID}"
    assert os.stat(f"{broker.directory}/broker.lock").st_mode & 0o777 == 0o600
    if opened == "owner":
        with pytest.raises(PermissionError):
            dial_as(A, broker.directory)
    elif opened == "all":
        connect_as(A, broker.directory).close()
    else:
        connect_as(A, broker.directory, groups=[GROUP_ID]).close()
        with pytest.raises(PermissionError):
            dial_as(A, broker.directory)


# ---- what is seen ----


def test_a_private_model_of_root_does_not_exist_for_others(start_broker, small):
    broker = start_broker(config(attach=A), leaves_models=True)
    broker.cli("load", small, "--name", "secret", expect=0)
    listed = broker.cli("ls", "--json", prefix=user_prefix(A), expect=0).json
    assert listed == {"models": []}
    missing = broker.cli("attach", "secret", prefix=user_prefix(A), expect=3)
    assert "nothing is resident for you" in missing.err and "uid 0" not in missing.err
    assert broker.cli("evict", "secret", "--force", prefix=user_prefix(A), expect=3)
    with connect_as(A, broker.directory) as client:
        stat = client.stat()
        assert stat["models"] in (0, 1)
        key = broker.models()[0]["key"]
        for ask in (client.attach, client.evict):
            failure = refused(ask, key=key)
            assert failure.code == NOT_FOUND and "secret" not in failure.message
            failure = refused(ask, key=key | {"device": "other"})
            assert failure.code == NOT_FOUND and not failure.field
    assert [m["state"] for m in broker.models()] == [protocol.READY]


def test_a_model_that_root_shows_to_all_is_attached_but_not_evicted_by_others(start_broker, small):
    broker = start_broker(config(attach=A), leaves_models=True)
    broker.cli("load", small, "--name", "shared", "--visible", "all", expect=0)
    listed = broker.cli("ls", "--json", prefix=user_prefix(A), expect=0).json["models"]
    assert [(m["name"], m["owner_uid"], m["visibility"]) for m in listed] == [("shared", 0, "all")]
    assert broker.cli("attach", small, "--json", prefix=user_prefix(A), expect=0).json["sources"] == "same"
    assert "intact" in broker.cli("verify", "shared", prefix=user_prefix(A), expect=0).text
    for how in ([], ["--drain"], ["--force"]):
        stopped = broker.cli("evict", "shared", *how, prefix=user_prefix(A), expect=6)
        assert "belongs to uid 0" in stopped.err and "evict in [access]" in stopped.err
    stopped = broker.cli("load", small, prefix=user_prefix(A), expect=6)
    assert f"uid {A} may not publish here" in stopped.err and "publish in [access]" in stopped.err
    with broker.cli.holding("shared", prefix=user_prefix(A)) as holder:
        held = broker.models()[0]["holders"]
        assert [(h["pid"], h["uid"]) for h in held] == [(holder.pid, A)]


def test_who_may_evict_sees_and_evicts_what_others_own(start_broker, small):
    broker = start_broker(config(evict=A))
    broker.cli("load", small, "--name", "secret", expect=0)
    assert [m["name"] for m in broker.cli("ls", "--json", prefix=user_prefix(A)).json["models"]] == ["secret"]
    with connect_as(A, broker.directory) as client:
        assert refused(client.attach, "secret").code == NOT_FOUND
    broker.cli("evict", "secret", prefix=user_prefix(A), expect=0)
    assert broker.becomes_empty()


def test_a_loading_model_of_another_is_not_shown_either(start_broker):
    broker = start_broker(config(attach=A))
    with broker.connect() as publisher, connect_as(A, broker.directory) as other:
        Handmade().begin(publisher)
        assert other.list() == []
        assert refused(other.attach, "handmade").code == NOT_FOUND
        Handmade("open").begin(broker.connect(), visibility=ALL)
    assert broker.becomes_empty()


# ---- whose model ----


def test_the_same_key_of_two_users_is_two_models_and_each_gets_its_own(start_broker):
    broker = start_broker(config(publish=f"{A}, {B}", trusted=f"{A}, {B}"), leaves_models=True)
    key = {"model": "/models/target"}
    published = {}
    for uid, visibility in ((A, ALL), (B, ALL), (0, OWNER)):
        published[uid] = Handmade("target", key=key, seed=uid)
        with connect_as(uid, broker.directory) as client:
            published[uid].publish(client, visibility=visibility)
    for uid, made in published.items():
        with connect_as(uid, broker.directory) as client:
            for _ in range(2):
                assert contents(client, "target") == contents(client, key=key) == made.contents
                assert contents(client, key=key, exact=True) == made.contents
            with client.attach(key=key) as attached:
                assert attached.manifest.header["owner_uid"] == uid


def test_nobody_squats_on_anothers_key(start_broker):
    """B claims A's key first, commits it, and even waits there: A publishes and attaches as if B were not there."""
    broker = start_broker(config(publish=f"{A}, {B}"), leaves_models=True)
    made, spoiled = Handmade("target", seed=1), Handmade("target", seed=2)
    with connect_as(A, broker.directory) as a, connect_as(B, broker.directory) as b, \
            connect_as(B, broker.directory) as squatter:
        spoiled.publish(b, visibility=ALL)
        spoiled.begin(squatter, flags=protocol.REPLACE)
        assert refused(a.attach, "target").code == NOT_FOUND
        assert a.list() == []
        made.publish(a)
        assert contents(a, "target") == made.contents
        assert contents(b, "target") == spoiled.contents
        assert refused(a.evict, "target", key=spoiled.key | {"x": "y"}).code != protocol.OK
        assert b.evict("target") == 0
        assert contents(a, "target") == made.contents


def test_a_wait_is_not_answered_with_anothers_model(start_broker):
    broker = start_broker(config(publish=f"{A}, {B}"), leaves_models=True)
    made = Handmade("target", seed=1)
    with connect_as(A, broker.directory) as a, connect_as(B, broker.directory) as b, connect_as(A, broker.directory) as a2:
        request = a.send(protocol.ATTACH, protocol.selector("target", wait_ms=protocol.FOREVER))
        Handmade("target", seed=2).publish(b, visibility=ALL)
        made.publish(a2)
        with protocol.Attached(a.wait_for(protocol.ATTACH, request)) as attached:
            assert bytes(attached.maps[0][:]) == made.contents[0]


@pytest.mark.parametrize("trusted", [True, False])
def test_what_a_user_shows_is_attached_by_others_only_if_policy_trusts_it(start_broker, trusted):
    access = {"publish": A, "attach": f"{A}, {B}"} | ({"trusted": A} if trusted else {})
    broker = start_broker(config(**access), leaves_models=True)
    made = Handmade(seed=3)
    with connect_as(A, broker.directory) as a, connect_as(B, broker.directory) as b:
        made.publish(a, visibility=ALL)
        if trusted:
            assert contents(b, "handmade") == made.contents
            assert [m["owner_uid"] for m in b.list()] == [A]
            assert refused(b.evict, "handmade").code == REFUSED
        else:
            assert refused(b.attach, "handmade").code == NOT_FOUND
            assert b.list() == []
            assert broker.cli("attach", "handmade", prefix=user_prefix(B), expect=3)
        assert contents(a, "handmade") == made.contents


def test_root_comes_before_trusted_publishers_and_ones_own_before_root(start_broker):
    broker = start_broker(config(publish=f"{A}, {B}", attach="all", trusted=A), leaves_models=True)
    key = {"model": "/m"}
    sizes = {}
    with connect_as(B, broker.directory) as b:
        for uid in (A, 0, B):
            sizes[uid] = Handmade("m", key=key, seed=uid)
            with connect_as(uid, broker.directory) as publisher:
                sizes[uid].publish(publisher, visibility=ALL)
            assert contents(b, "m") == sizes[uid].contents
        b.evict("m")
        assert contents(b, "m") == sizes[0].contents


def test_who_may_publish_but_not_attach_gets_its_own_models_alone(start_broker):
    broker = start_broker(config(publish=A), leaves_models=True)
    with broker.connect() as root:
        Handmade("roots").publish(root, visibility=ALL)
    with connect_as(A, broker.directory) as a:
        assert refused(a.attach, "roots").code == NOT_FOUND
        own = Handmade("own")
        own.publish(a)
        assert contents(a, "own") == own.contents


def test_even_root_is_not_served_the_private_model_of_a_user(start_broker):
    """Root sees it and may evict it; attaching is a lookup, and never finds what an untrusted user calls a name."""
    broker = start_broker(config(publish=A))
    with connect_as(A, broker.directory) as a, broker.connect() as root:
        Handmade(seed=1).publish(a, visibility=ALL)
        assert [m["name"] for m in root.list()] == ["handmade"]
        assert refused(root.attach, "handmade").code == NOT_FOUND
        assert root.evict("handmade") == 0
    assert broker.becomes_empty()


# ---- groups ----


def test_a_model_for_a_group_is_for_its_members(start_broker, small):
    broker = start_broker(config(attach="all"), leaves_models=True)
    broker.cli("load", small, "--name", "grouped", "--visible", f"group:{GROUP_ID}", expect=0)
    listed = broker.cli("ls", "--json").json["models"]
    assert (listed[0]["visibility"], listed[0]["visible_gid"]) == ("group", GROUP_ID)
    for groups, gid, admitted in (((), None, False), ((GROUP_ID,), None, True), ((1, GROUP_ID, 2), None, True),
                                  ((), GROUP_ID, True), ((GROUP_ID + 1,), None, False)):
        with connect_as(A, broker.directory, gid=gid, groups=groups) as client:
            assert [m["name"] for m in client.list()] == (["grouped"] if admitted else [])
            if admitted:
                contents(client, "grouped")
            else:
                assert refused(client.attach, "grouped").code == NOT_FOUND
    assert broker.cli("attach", "grouped", prefix=user_prefix(B, groups=[GROUP_ID]), expect=0)
    assert broker.cli("attach", "grouped", prefix=user_prefix(B), expect=3)


def test_nobody_publishes_for_a_group_that_it_is_not_in(start_broker):
    broker = start_broker(config(publish=A), leaves_models=True)
    with connect_as(A, broker.directory) as a:
        failure = refused(Handmade().begin, a, visibility=GROUP, gid=GROUP_ID)
        assert failure.code == REFUSED and f"group {GROUP_ID}" in failure.message
    with connect_as(A, broker.directory, groups=[GROUP_ID]) as a:
        Handmade().publish(a, visibility=GROUP, gid=GROUP_ID)


def test_group_names_are_understood(start_broker, small):
    broker = start_broker(config(attach="@daemon"), leaves_models=True)
    gid = grp.getgrnam("daemon").gr_gid
    broker.cli("load", small, "--name", "grouped", "--visible", "group:daemon", expect=0)
    with connect_as(A, broker.directory, groups=[gid]) as client:
        contents(client, "grouped")
    assert "no such group" in broker.cli("load", small, "--visible", "group:no-such-group", expect=2).err


def test_a_users_own_broker_serves_it_and_root(folder, start_broker):
    os.chown(folder, A, A)
    broker = start_broker(prefix=user_prefix(A), user=user_prefix(A), leaves_models=True)
    made = Handmade()
    with connect_as(A, broker.directory) as client:
        made.publish(client)
        assert client.stat()["uid"] == A
        assert contents(client, "handmade") == made.contents
    assert [m["name"] for m in broker.models()] == ["handmade"]
    assert as_user(A, broker.serves)
    with pytest.raises(PermissionError):
        dial_as(B, broker.directory)
    # Root may, but does not trust what is not its own, unless it is told to.
    assert f"belongs to uid {A}" in broker.cli("ls", expect=6).err
