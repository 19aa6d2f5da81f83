"""What an attach costs as the number of tensors grows: the manifest is checksummed, its tensors are not looked at."""
import common
import models
import protocol


def publish(client, count):
    name, key = f"tensors-{count}", {"model": f"/tensors/{count}"}
    client.begin(key, [4096], name=name)
    fd = protocol.sealed(bytes(4096))
    with protocol.closing(fd):
        client.segments([fd])
    client.draft(models.large_draft(name, key, tensors=count))
    client.commit()
    return name


def main():
    args = common.arguments(__doc__, repeat=300)
    counts = 100, 1_000, 10_000, 100_000
    results = {count: [] for count in counts}
    with common.broker(args.build) as broker:
        with protocol.Client.connect(broker.folder) as client:
            names = {count: publish(client, count) for count in counts}
        for _ in range(args.rounds):
            for count in counts:
                results[count].append(broker.run("attach", names[count], "--repeat", str(args.repeat)))
    common.heading(f"{args.rounds} rounds of {args.repeat}")
    for count in counts:
        size = results[count][0]["manifest_bytes"] / 2**20
        for name in "p50", "p99":
            common.row(f"attach, {count} tensors ({size:.2f} MiB), {name}",
                       [r["times_us"]["total"][name] for r in results[count]], "us")


if __name__ == "__main__":
    main()
