"""What must not grow, and what must not move."""
import gc
import time

from harness import wait_until
from models import Handmade


def attach_often(broker, times):
    """Connects, attaches and lets go, one after another; the broker's part of what `attach --repeat` does."""
    left = times
    while left > 0:
        count = min(left, 1000)
        broker.cli("attach", "handmade", "--repeat", count, expect=0)
        left -= count


def test_memory_and_fds_do_not_grow_with_100000_attaches(not_sanitized, broker):
    times = 100_000
    broker.leaves_models = True
    with broker.connect() as client:
        Handmade(segments=2, size=4096).publish(client)
    attach_often(broker, 2000)
    wait_until(lambda: broker.stat()["leases"] == 0, "the leases to end")
    memory, fds = broker.rss_kib(), broker.fd_count()
    attach_often(broker, times)
    wait_until(lambda: broker.stat()["leases"] == 0, "the leases to end")
    wait_until(lambda: broker.fd_count() <= fds, "the fds to be closed")
    assert broker.stat()["attaches"] >= times
    assert broker.rss_kib() <= memory + 64, "the broker grows with every attach"


def test_memory_does_not_grow_with_models_that_come_and_go(not_sanitized, broker, client):
    def cycle(times):
        for number in range(times):
            Handmade(f"m{number}", segments=3, size=4096).publish(client)
            client.evict(f"m{number}")

    cycle(300)
    memory, fds = broker.rss_kib(), broker.fd_count()
    cycle(1500)
    wait_until(lambda: broker.fd_count() <= fds, "the fds to be closed")
    assert broker.rss_kib() <= memory + 128, "the broker grows with every model"


def test_memory_does_not_grow_with_refusals(not_sanitized, broker):
    def cycle(times):
        for _ in range(times):
            with broker.connect() as client:
                client.send_raw(b"nonsense")
                client.last_words()

    cycle(500)
    memory = broker.rss_kib()
    cycle(5000)
    assert broker.rss_kib() <= memory + 64, "the broker grows with every refusal"


def test_an_idle_broker_uses_no_processor_time(broker):
    broker.leaves_models = True
    with broker.connect() as client:
        Handmade().publish(client)
        held = [broker.connect() for _ in range(100)]
        for each in held[:50]:
            each.attach("handmade").close()
        gc.collect()
        before = broker.cpu_ticks()
        time.sleep(2)  # the point is the passing of time
        assert broker.cpu_ticks() == before
        for each in held:
            each.close()


def test_a_broker_with_100_models_and_1000_connections_fits_into_8_mib(not_sanitized, broker):
    broker.leaves_models = True
    with broker.connect() as client:
        for number in range(100):
            Handmade(f"m{number}", segments=2, size=4096).publish(client)
    held = [broker.connect() for _ in range(1000)]
    for number, each in enumerate(held):
        each.attach(f"m{number % 100}").close()
    assert broker.stat()["leases"] == 1000
    assert broker.rss_kib() <= 8 * 1024
    for each in held:
        each.close()
