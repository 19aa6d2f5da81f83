"""File descriptors that nobody asked for, and drafts that lie."""
import errno
import fcntl
import os
import signal
import socket
import struct
import tempfile
import threading
import time

import pytest

import manifest
import protocol
from fuse import HangingFile
from harness import PATIENCE, wait_until
from models import Handmade
from protocol import (ATTACH, BEGIN, COMMIT, DETACH, DRAFT, EVICT, HELLO, INVALID, LIST, PING, SEGMENTS, STAT, Failure,
                      closing, header, hello, selector)

BODIES = {HELLO: hello(), BEGIN: protocol.begin({"a": "b"}, [4096]), COMMIT: b"", ATTACH: selector("x"), DETACH: b"",
          LIST: bytes(8), EVICT: bytes(8) + selector("x"), PING: b"", STAT: b""}


BODY_OF = BODIES | {SEGMENTS: struct.pack("<II", 0, 1), DRAFT: struct.pack("<Q", 4096)}


@pytest.fixture
def null():
    fd = os.open("/dev/null", os.O_RDWR)
    yield fd
    os.close(fd)


# ---- surplus ----


def claimed(broker):
    """A connection that is publishing: the only kind that may send fds at all, where the kernel can tell (Linux 6.16)."""
    client = broker.connect()
    Handmade("surplus", segments=3).begin(client)
    return client


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("count", [1, protocol.MAX_FDS])
def test_fds_with_a_request_that_takes_none_end_the_connection(broker, null, kind, count):
    fds = broker.fd_count()
    with claimed(broker) as client:
        client.send_raw(header(kind, BODIES[kind], 9), [null] * count)
        failure = client.last_words()
    assert failure.code == protocol.PROTOCOL and f"{count} file descriptors where at most 0" in failure.message
    wait_until(lambda: broker.fd_count() == fds, "the fds to be closed")
    assert broker.becomes_empty()


@pytest.mark.parametrize("greeted", [False, True])
def test_fds_from_who_publishes_nothing_are_refused_by_the_kernel_or_end_the_connection(broker, null, greeted):
    fds = broker.fd_count()
    with broker.connect(greet=greeted) as client:
        try:
            client.send_raw(header(PING, b"", 9), [null])
        except PermissionError:
            client.call(HELLO, hello())
            client.ping()
        else:
            assert client.last_words().code == protocol.PROTOCOL
    wait_until(lambda: broker.fd_count() == fds, "the fds to be closed")
    assert broker.serves()


def test_more_fds_than_a_message_can_carry_fail_in_the_kernel(broker, client, null):
    with pytest.raises(OSError) as failed:
        client.send_raw(header(PING), [null] * (protocol.MAX_FDS + 1))
    assert failed.value.errno in (errno.EINVAL, errno.E2BIG, errno.EPERM)
    client.ping()


def test_a_draft_takes_one_fd(broker, null):
    with claimed(broker) as client:
        client.send_raw(header(DRAFT, struct.pack("<Q", 4096), 9), [null, null])
        failure = client.last_words()
    assert failure.code == protocol.PROTOCOL and "2 file descriptors where at most 1" in failure.message
    assert broker.becomes_empty()


@pytest.mark.parametrize("count", [1, 3])
def test_more_or_fewer_segments_than_announced_end_the_connection(broker, null, count):
    with claimed(broker) as client:
        client.send_raw(header(SEGMENTS, struct.pack("<II", 0, 2), 9), [null] * count)
        failure = client.last_words()
    assert failure.code == protocol.PROTOCOL and f"says 2 file descriptors, {count} came" in failure.message
    assert broker.becomes_empty()


# ---- wrong kinds ----


def make_fd(kind, size=8192):
    """An fd of that kind; what must stay open besides it."""
    if kind == "pipe":
        return os.pipe()
    if kind == "socket":
        pair = socket.socketpair()
        return pair[0].detach(), pair[1].detach()
    if kind == "regular file":
        with tempfile.TemporaryFile() as file:
            file.write(bytes(size))
            file.flush()
            return (os.dup(file.fileno()),)
    if kind == "directory":
        return (os.open("/", os.O_RDONLY),)
    if kind == "device":
        return (os.open("/dev/zero", os.O_RDWR),)
    if kind == "unsealed memfd":
        return (protocol.memfd(size=size),)
    if kind == "unsealable memfd":
        fd = os.memfd_create("plain", os.MFD_CLOEXEC)
        os.posix_fallocate(fd, 0, size)
        return (fd,)
    if kind in ("without WRITE", "without GROW", "without SHRINK", "without SEAL"):
        missing = getattr(fcntl, "F_SEAL_" + kind.split()[1])
        return (protocol.seal(protocol.memfd(size=size), protocol.SEALS & ~missing),)
    if kind == "only future writes":
        return (protocol.seal(protocol.memfd(size=size), protocol.SEALS & ~fcntl.F_SEAL_WRITE | 0x10),)
    if kind in ("sparse", "half sparse"):
        fd = os.memfd_create("sparse", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        if kind == "half sparse":
            os.posix_fallocate(fd, 0, size // 2)
        return (protocol.seal(fd),)
    if kind in ("O_PATH", "write-only"):
        fd = protocol.sealed(bytes(size)) if kind == "O_PATH" else protocol.memfd(bytes(size))
        again = os.open(f"/proc/self/fd/{fd}", os.O_PATH if kind == "O_PATH" else os.O_WRONLY)
        if kind == "write-only":
            protocol.seal(fd)
        return again, fd
    raise AssertionError(kind)


KINDS = {
    "pipe": "not a memfd", "socket": "not a memfd", "regular file": "not a memfd", "directory": "not a memfd",
    "device": "not a memfd", "unsealed memfd": "lacks the seals WRITE, GROW, SHRINK, SEAL",
    "unsealable memfd": "lacks the seals", "without WRITE": "lacks the seals WRITE", "without GROW": "lacks the seals GROW",
    "without SHRINK": "lacks the seals SHRINK", "without SEAL": "lacks the seals SEAL",
    "only future writes": "lacks the seals WRITE", "sparse": "sparse", "half sparse": "sparse",
    "O_PATH": "O_PATH", "write-only": "writing only",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_segment_must_be_a_sealed_and_complete_memfd(broker, client, kind):
    made = Handmade(segments=2)
    made.begin(client)
    wrong, *others = make_fd(kind)
    with closing(protocol.sealed(made.contents[0]), wrong, *others) as (good, *_):
        with pytest.raises(Failure) as refused:
            client.segments([good, wrong])
    assert refused.value.code == INVALID
    assert "segment 1" in refused.value.message and KINDS[kind] in refused.value.message, refused.value.message
    client.ping()
    client.close()
    assert broker.becomes_empty()


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_must_be_a_sealed_and_complete_memfd(broker, client, kind):
    made = Handmade()
    made.begin(client)
    made.segments(client)
    wrong, *others = make_fd(kind)
    with closing(wrong, *others), pytest.raises(Failure) as refused:
        client.draft(wrong, size=8192)
    assert refused.value.code == INVALID and "the draft" in refused.value.message
    assert KINDS[kind] in refused.value.message, refused.value.message
    client.draft(made.draft.build())
    client.close()
    assert broker.becomes_empty()


@pytest.mark.parametrize("size", [4096, 8191, 8193, 1 << 20])
def test_a_segment_has_the_promised_size(broker, client, size):
    Handmade().begin(client)
    with closing(protocol.sealed(size=size)) as fd, pytest.raises(Failure) as refused:
        client.segments([fd])
    assert refused.value.code == INVALID and f"has {size} bytes, 8192 were promised" in refused.value.message
    assert broker.serves()


def test_one_memfd_is_no_two_segments(broker, client):
    Handmade(segments=2).begin(client)
    with closing(protocol.sealed(size=8192)) as fd:
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        with closing(again):
            for pair in ((fd, fd), (fd, again)):
                with pytest.raises(Failure) as refused:
                    client.segments(pair)
                assert refused.value.code == INVALID
                assert "segment 1 is the same memory as segment 0" in refused.value.message
            client.segments([fd])
            with pytest.raises(Failure) as refused:
                client.segments([again], first=1)
            assert "the same memory" in refused.value.message
    assert broker.serves()


def test_an_empty_memfd_is_no_segment(broker, client):
    Handmade().begin(client)
    with closing(protocol.sealed()) as fd, pytest.raises(Failure) as refused:
        client.segments([fd])
    assert refused.value.code == INVALID
    assert broker.serves()


# ---- drafts that lie ----


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


# ---- fds whose closing takes long ----


def lingering_socket(seconds=5):
    """A TCP socket whose last close waits for a peer that does not read."""
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    peer, _ = listener.accept()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
    sender.setblocking(False)
    try:
        while True:
            sender.send(bytes(65536))
    except BlockingIOError:
        pass
    return sender, peer, listener


def served_soon(broker, limit=2.5):
    began = time.monotonic()
    assert broker.serves()
    took = time.monotonic() - began
    assert took < limit, f"another client waited {took:.1f} s"


def hand_over(broker, client, data, sock):
    """So that the broker's copy is the last one."""
    broker.signal(signal.SIGSTOP)
    client.send_raw(data, [sock.fileno()])
    sock.close()
    broker.signal(signal.SIGCONT)


@pytest.mark.parametrize("kind", [PING, SEGMENTS, DRAFT])
def test_a_lingering_socket_that_came_as_an_fd_delays_nobody(broker, kind):
    sender, peer, listener = lingering_socket()
    made = Handmade()
    with peer, listener, broker.connect() as client:
        made.begin(client)
        if kind == DRAFT:
            made.segments(client)
        hand_over(broker, client, header(kind, BODY_OF[kind], 9), sender)
        served_soon(broker)


def test_a_lingering_socket_in_a_message_that_is_never_read_delays_nobody(broker):
    sender, peer, listener = lingering_socket()
    with peer, listener, claimed(broker) as client:
        client.send(ATTACH, selector("nobody", wait_ms=protocol.FOREVER))
        hand_over(broker, client, header(PING, b"", 9), sender)
        client.close()
        served_soon(broker)


@pytest.mark.parametrize("kind", [PING, SEGMENTS, DRAFT])
def test_a_file_whose_close_never_ends_delays_nobody(root, broker, folder, kind):
    (folder / "mount").mkdir()
    hanging = HangingFile(folder / "mount")
    try:
        path = hanging.__enter__()
    except OSError as error:
        pytest.skip(f"needs FUSE: {error}")
    try:
        with claimed(broker) as client:
            with closing(os.open(path, os.O_RDWR)) as fd:
                client.send_raw(header(kind, BODY_OF[kind], 9), [fd])
                assert hanging.hung.wait(PATIENCE), "the broker has not closed it"
            served_soon(broker)
            client.last_words() if kind == PING else client.receive()
        served_soon(broker)
        with broker.connect() as other:
            Handmade().publish(other)
            other.evict("handmade")
        wait_until(broker.is_empty, "memory to be freed all the same")
    finally:
        hanging.__exit__()


def test_freeing_much_memory_delays_nobody_for_long(broker, client):
    """A publisher that dies with a gigabyte in the broker's hands."""
    size = 1 << 30
    client.begin({"model": "/giant"}, [size])
    with closing(protocol.sealed(size=size)) as fd:
        client.segments([fd])
    worst, stop = [0.0], threading.Event()

    def others():
        with broker.connect() as engine:
            while not stop.is_set():
                began = time.monotonic()
                engine.ping()
                worst[0] = max(worst[0], time.monotonic() - began)

    thread = threading.Thread(target=others)
    thread.start()
    client.close()
    broker.becomes_empty()
    stop.set()
    thread.join()
    assert worst[0] < 1
