"""What the broker costs: its memory with many models and connections, its growth over many attaches, its CPU when idle."""
import time

import common
import models
import protocol


def main():
    args = common.arguments(__doc__, models=100, connections=1000, attaches=100_000)
    with common.broker(args.build) as broker:
        common.heading("broker")
        common.row("resident memory, empty", [broker.resident_kib()], "KiB", 0)
        with protocol.Client.connect(broker.folder) as client:
            for i in range(args.models):
                models.Handmade(f"model-{i}", segments=4, seed=i).publish(client)
        common.row(f"resident memory, {args.models} models", [broker.resident_kib()], "KiB", 0)
        clients = [protocol.Client.connect(broker.folder) for _ in range(args.connections)]
        for i, client in enumerate(clients):
            client.attach(f"model-{i % args.models}").close()
        common.row(f"resident memory, and {args.connections} leased connections", [broker.resident_kib()], "KiB", 0)
        before = broker.cpu_seconds()
        time.sleep(5)
        common.row("CPU over 5 idle seconds", [broker.cpu_seconds() - before], "s", 2)
        for client in clients:
            client.close()
        broker.run("attach", "model-0", "--repeat", "1000")
        fds, memory = broker.fds(), broker.resident_kib()
        broker.run("attach", "model-0", "--repeat", str(args.attaches))
        common.row(f"growth over {args.attaches} attaches", [broker.resident_kib() - memory], "KiB", 0)
        common.row(f"more fds after {args.attaches} attaches", [broker.fds() - fds], "", 0)


if __name__ == "__main__":
    main()
