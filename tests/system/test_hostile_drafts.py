"""Drafts that lie: about the claim, about the segments, about themselves."""
import struct

import pytest

import manifest
import protocol
from models import Handmade
from protocol import INVALID, Failure, closing


def drafted(client, made, draft, **options):
    made.begin(client)
    made.segments(client)
    with pytest.raises(Failure) as refused:
        client.draft(draft, **options)
    assert refused.value.code == INVALID, refused.value
    with pytest.raises(Failure) as early:
        client.commit()
    assert "before a DRAFT was accepted" in early.value.message
    return refused.value.message


def other_segments(made, sizes):
    draft = manifest.Draft(made.key, made.name)
    for size in sizes:
        draft.segment(size)
    return draft


@pytest.mark.parametrize("what, says", [
    ("another key", "the draft's key is not the one that was claimed"),
    ("one field more", "the draft's key is not the one that was claimed"),
    ("another name", "the draft's name is not the one that was claimed"),
    ("another segment size", "segments[0]"),
    ("too many segments", "the draft has 2, 1 were claimed"),
    ("no segments", "the draft has 0, 1 were claimed"),
    ("a legacy handle", "segments[0]"),
])
def test_a_draft_that_describes_something_else_is_refused(broker, client, what, says):
    made = Handmade()
    draft = {
        "another key": manifest.Draft({"model": "/other"}, made.name).segment(8192),
        "one field more": manifest.Draft(made.key | {"more": "x"}, made.name).segment(8192),
        "another name": manifest.Draft(made.key, "other").segment(8192),
        "another segment size": other_segments(made, [4096]),
        "too many segments": other_segments(made, [8192, 8192]),
        "no segments": other_segments(made, []),
        "a legacy handle": manifest.Draft(made.key, made.name).segment(8192, handle_kind=2),
    }[what].build()
    assert says in drafted(client, made, draft)
    client.close()
    assert broker.becomes_empty()


def damaged(draft, what):
    size = len(draft)
    flipped = bytearray(draft)
    flipped[-1] ^= 1
    return {
        "a wrong checksum": bytes(flipped),
        "zeros": bytes(size),
        "text": b"not a manifest, but long enough to look like one; " * 40,
        "half of it": draft[:size // 2],
        "a byte too few": draft[:-1],
        "a byte too many": draft + b"\0",
        "another version": manifest.reseal(draft[:8] + b"\2\0" + draft[10:]),
        "an incompatible flag": manifest.reseal(draft[:36] + b"\1" + draft[37:]),
        "a wrong total": manifest.reseal(draft[:16] + struct.pack("<Q", 1 << 60) + draft[24:]),
        "a section outside": manifest.reseal(draft[:112] + struct.pack("<Q", 1 << 40) + draft[120:]),
        "a huge count": manifest.reseal(draft[:124] + b"\xff\xff\xff\xff" + draft[128:]),
    }[what]


@pytest.mark.parametrize("what", ["a wrong checksum", "zeros", "text", "half of it", "a byte too few", "a byte too many",
                                  "another version", "an incompatible flag", "a wrong total", "a section outside",
                                  "a huge count"])
def test_a_damaged_draft_is_refused_with_what_is_wrong(broker, client, what):
    made = Handmade()
    message = drafted(client, made, damaged(made.draft.build(), what))
    assert "the draft is refused" in message and "manifest" in message, message
    client.close()
    assert broker.becomes_empty()


@pytest.mark.parametrize("change, says", [
    (lambda d: d.tensor("beyond", "U8", (1,), 0, 8192), "tensors[2]"),
    (lambda d: d.tensor("overlap", "U8", (64,), 0, 300), "belong to a tensor before"),
    (lambda d: d.tensor("s0.first", "U8", (4,), 0, 4096), "s0.first"),
    (lambda d: d.tensor("elsewhere", "U8", (1,), 1, 0), "there are 1 segments"),
    (lambda d: d.tensor("huge", "U8", (1 << 62, 4), 0, 4096, size=8), "tensors[2]"),
    (lambda d: d.tensor("crooked", "F64", (1,), 0, 4100), "multiple of"),
    (lambda d: d.tensor(b"\xff\xfe", "U8", (1,), 0, 4096), "UTF-8"),
    (lambda d: d.source("../escape", 1), "../escape"),
    (lambda d: d.source("/absolute", 1), "/absolute"),
])
def test_a_draft_whose_tables_lie_is_refused_with_the_place(broker, client, change, says):
    made = Handmade()
    change(made.draft)
    message = drafted(client, made, made.draft.build())
    assert says in message, message
    client.close()
    assert broker.becomes_empty()


@pytest.mark.parametrize("size", [0, 255, 1 << 63, 0xFFFFFFFFFFFFFFFF])
def test_a_draft_of_another_size_than_announced_is_refused(broker, client, size):
    made = Handmade()
    assert "was announced with" in drafted(client, made, made.draft.build(), size=size)
    assert broker.serves()


def test_a_draft_larger_than_any_manifest_is_refused_unread(broker, client):
    made = Handmade()
    with closing(protocol.sealed(size=protocol.MAX_MANIFEST + (1 << 20))) as fd:
        assert f"{protocol.MAX_MANIFEST}" in drafted(client, made, fd)
    client.close()
    assert broker.becomes_empty()


def test_the_largest_draft_of_nonsense_is_refused_after_it_was_read(broker, client):
    made = Handmade()
    with closing(protocol.sealed(size=protocol.MAX_MANIFEST)) as fd:
        assert "not a manifest" in drafted(client, made, fd)
    client.close()
    assert broker.becomes_empty()


def test_a_better_draft_may_follow_a_bad_one(broker, client):
    broker.leaves_models = True
    made = Handmade()
    drafted(client, made, b"x" * 5000)
    client.draft(made.draft.build())
    client.commit()
    with broker.connect() as engine, engine.attach("handmade") as attached:
        assert bytes(attached.maps[0][:]) == made.contents[0]
