"""Attaching while the broker validates one hostile 100,000-tensor draft after the other, against attaching in peace."""
import threading

import common
import models
import protocol


def publish_drafts(folder, draft, stop, count):
    """The draft is refused at its very end, by its key, so that every round is validated in full."""
    client = protocol.Client.connect(folder)
    other = models.Handmade("other", key={"model": "/other"}, size=4096)
    other.begin(client)
    other.segments(client)
    fd = protocol.sealed(draft)
    while not stop.is_set():
        try:
            client.draft(fd)
        except protocol.Failure as failure:
            assert "key" in failure.message, failure
        count.append(1)
    client.close()


def main():
    args = common.arguments(__doc__, repeat=2000)
    draft = models.large_draft("large", {"model": "/large"})
    peace, war = [], []
    with common.broker(args.build) as broker:
        with protocol.Client.connect(broker.folder) as client:
            models.Handmade("bench").publish(client)
        for _ in range(args.rounds):
            peace.append(broker.run("attach", "bench", "--repeat", str(args.repeat))["times_us"]["total"])
            stop, count = threading.Event(), []
            hostile = threading.Thread(target=publish_drafts, args=(broker.folder, draft, stop, count))
            hostile.start()
            while not count:
                stop.wait(0.01)
            war.append(broker.run("attach", "bench", "--repeat", str(args.repeat))["times_us"]["total"])
            stop.set()
            hostile.join()
            print(f"{len(count)} drafts of {len(draft) / 2**20:.1f} MiB were validated and refused meanwhile")
    common.heading(f"{args.rounds} rounds of {args.repeat} attaches")
    for name in "p50", "p99", "max":
        common.row(f"{name} in peace", [p[name] / 1000 for p in peace], "ms", 3)
        common.row(f"{name} while drafts are validated", [w[name] / 1000 for w in war], "ms", 3)


if __name__ == "__main__":
    main()
