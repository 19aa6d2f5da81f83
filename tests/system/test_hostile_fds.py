"""File descriptors that nobody asked for, or of the wrong kind."""
import errno
import fcntl
import os
import socket
import struct
import tempfile

import pytest

import protocol
from harness import wait_until
from models import Handmade, claimed
from protocol import (ATTACH, BEGIN, COMMIT, DETACH, DRAFT, EVICT, HELLO, INVALID, LIST, PING, SEGMENTS, STAT, Failure,
                      closing, header, hello, selector)

BODIES = {HELLO: hello(), BEGIN: protocol.begin({"a": "b"}, [4096]), COMMIT: b"", ATTACH: selector("x"), DETACH: b"",
          LIST: bytes(8), EVICT: bytes(8) + selector("x"), PING: b"", STAT: b""}


@pytest.fixture
def null():
    fd = os.open("/dev/null", os.O_RDWR)
    yield fd
    os.close(fd)


# ---- surplus ----


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
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
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
