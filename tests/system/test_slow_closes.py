"""File descriptors whose last close takes long, or for ever: whoever sends them delays nobody but itself.

A broker that closed them where it serves would not answer before the harness has lost its patience.
"""
import os
import signal
import socket
import struct

import pytest

import protocol
from fuse import HangingFile
from harness import PATIENCE, wait_until
from models import Handmade, claimed
from protocol import ATTACH, DRAFT, PING, SEGMENTS, closing, header, selector

BODIES = {PING: b"", SEGMENTS: struct.pack("<II", 0, 1), DRAFT: struct.pack("<Q", 4096)}


def lingering_socket(seconds=10 * int(PATIENCE)):
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
        hand_over(broker, client, header(kind, BODIES[kind], 9), sender)
        assert broker.serves()


def test_a_lingering_socket_in_a_message_that_is_never_read_delays_nobody(broker):
    sender, peer, listener = lingering_socket()
    with peer, listener, claimed(broker) as client:
        client.send(ATTACH, selector("nobody", wait_ms=protocol.FOREVER))
        hand_over(broker, client, header(PING, b"", 9), sender)
        client.close()
        assert broker.serves()


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
                client.send_raw(header(kind, BODIES[kind], 9), [fd])
                assert hanging.hung.wait(PATIENCE), "the broker has not closed it"
            assert broker.serves()
            client.last_words() if kind == PING else client.receive()
        assert broker.serves()
        with broker.connect() as other:
            Handmade().publish(other)
            other.evict("handmade")
        wait_until(broker.is_empty, "memory to be freed all the same")
    finally:
        hanging.__exit__()


def processor_ns(broker):
    """What the broker's serving thread has computed, and what its others have."""
    spent = {}
    for thread in os.listdir(f"/proc/{broker.pid}/task"):
        with open(f"/proc/{broker.pid}/task/{thread}/schedstat", encoding="ascii") as file:
            spent[int(thread)] = int(file.read().split()[0])
    serving = spent.pop(broker.pid)
    return serving, sum(spent.values())


def test_freeing_much_memory_is_not_the_serving_threads_work(broker, client):
    """A publisher that dies with a gigabyte in the broker's hands: another thread gives the pages back."""
    size = 1 << 30
    client.begin({"model": "/giant"}, [size])
    with closing(protocol.sealed(size=size)) as fd:
        client.segments([fd])
    serving, others = processor_ns(broker)
    client.close()

    def others_did_it():
        now = processor_ns(broker)
        return now[1] - others > max(now[0] - serving, 1_000_000)

    wait_until(others_did_it, "another thread to free the memory")
    broker.becomes_empty()
