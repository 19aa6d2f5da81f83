"""Peers without an identity: user namespaces that map nobody."""
import os

import pytest

import protocol
from harness import turned_away
from models import Handmade
from protocol import ALL, NOT_FOUND, REFUSED, Client, Failure
from users import connect_as, dial_as, user_prefix

A, B = 1234, 1235
OPEN = "[broker]\nopen = all\n[access]\nattach = all\npublish = all\n"
OWN_USERS = ("unshare", "--user", "--map-root-user")
OWN_USERS_AND_PIDS = (*OWN_USERS, "--pid", "--fork", "--kill-child")

pytestmark = pytest.mark.usefixtures("other_users", "user_namespaces")


@pytest.mark.parametrize("prefix", [OWN_USERS_AND_PIDS, OWN_USERS], ids=["own pids", "shared pids"])
def test_a_peer_whom_the_brokers_namespace_does_not_know_is_nobody(start_broker, prefix):
    """The broker sees uid 65534 for everybody outside of its map: two strangers would be one user."""
    broker = start_broker(OPEN, prefix=prefix)
    for uid in (A, B, 65534):
        failure = turned_away(dial_as(uid, broker.directory))
        assert failure.code == REFUSED and "user namespace" in failure.message
    stopped = broker.cli("ls", prefix=user_prefix(A), expect=6)
    assert "user namespace" in stopped.err
    assert "refused uid 0" not in broker.log, "the log names a user who was not there"
    assert broker.serves()


def test_two_strangers_never_get_each_others_bytes(start_broker):
    broker = start_broker(OPEN, prefix=OWN_USERS)
    try:
        with connect_as(A, broker.directory) as a:
            Handmade("target").publish(a, visibility=protocol.OWNER)
            broker.leaves_models = True
    except (Failure, protocol.Closed):
        return  # turned away: nothing to fear
    with connect_as(B, broker.directory) as b, pytest.raises(Failure) as refused:
        b.attach("target")
    assert refused.value.code == NOT_FOUND


def test_a_peer_in_an_unmapped_namespace_is_still_the_user_it_was(start_broker):
    """To a broker outside, the kernel names who made the namespace: no more and no fewer rights than without it."""
    broker = start_broker(f"[broker]\nopen = all\n[access]\nattach = {A}\n", leaves_models=True)
    with broker.connect() as root:
        Handmade("private").publish(root)
        Handmade("shared").publish(root, visibility=ALL)
    with Client(dial_as(A, broker.directory, unmapped=True)) as client:
        assert [m["name"] for m in client.list()] == ["shared"]
    assert f"uid {B}" in turned_away(dial_as(B, broker.directory, unmapped=True)).message


def test_a_client_without_an_identity_cannot_tell_even_roots_broker(start_broker):
    """There the directory's owner is 65534 like everybody else: nothing is proven, nothing is used."""
    broker = start_broker(OPEN)
    broker.cli("ls", prefix=user_prefix(A), expect=0)
    stopped = broker.cli("ls", prefix=(*user_prefix(A), "unshare", "--user"), expect=6)
    assert "belongs to uid 65534" in stopped.err
    assert broker.serves()


def test_the_real_user_65534_is_a_user_like_others(start_broker):
    broker = start_broker("[broker]\nopen = all\n[access]\npublish = 65534\n", leaves_models=True)
    with connect_as(65534, broker.directory) as nobody:
        Handmade().publish(nobody)
        nobody.attach("handmade").close()


def test_a_client_without_an_identity_trusts_no_stranger(start_broker, folder):
    """In an unmapped namespace every uid looks like one's own, 65534: that proves nothing about the broker."""
    os.chown(folder, B, B)
    broker = start_broker("[broker]\nopen = all\n[access]\nattach = all\n", prefix=user_prefix(B), user=user_prefix(B))
    outside = broker.cli("ls", prefix=user_prefix(A), expect=6)
    assert f"belongs to uid {B}" in outside.err
    inside = broker.cli("ls", prefix=(*user_prefix(A), "unshare", "--user"))
    assert inside.status == 6, "it took another user's broker for its own"


def test_a_client_in_a_namespace_of_its_own_reaches_the_broker_of_its_user(start_broker):
    broker = start_broker(OPEN)
    with Client(dial_as(A, broker.directory)) as client:
        client.ping()
    reached = broker.cli("ping", prefix=("unshare", "--user", "--map-root-user"), expect=0)
    assert "round trip" in reached.text
