"""What silent probes cost: attach p50 of a build with and of one without them (make USDT=0), in turn: A, B, A.

--bare names a folder with the build without, else one is made.

The two A of a round differ by nothing but time: their spread is what a difference must exceed to mean anything.
"""
import pathlib
import statistics
import subprocess
import sys
import tempfile

import common

ROOT = common.HERE.parent.parent


def without_probes(folder):
    subprocess.run(["make", "-C", str(ROOT), "-s", "-j2", "USDT=0", "BPF=0", f"BUILD={folder}"], check=True)
    notes = subprocess.run(["readelf", "-n", f"{folder}/ipc-cache"], check=True, capture_output=True, text=True).stdout
    if "stapsdt" in notes:
        sys.exit("the build without probes has some")
    return folder


def main():
    args = common.arguments(__doc__, repeat=5000, bare="")
    first, other, second = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "model.safetensors"
        sys.path.insert(0, str(ROOT / "tests/system"))
        import models  # pylint: disable=import-outside-toplevel
        models.write_file(model, models.small_tensors())
        bare = args.bare or without_probes(f"{folder}/build")
        with common.broker(args.build) as a, common.broker(bare) as b:
            for broker in a, b:
                broker.run("load", str(model), "--name", "bench")

            def p50(broker):
                return broker.run("attach", "bench", "--repeat", str(args.repeat))["times_us"]["total"]["p50"]
            for broker in a, b:
                p50(broker)  # warm
            for _ in range(args.rounds):
                first.append(p50(a))
                other.append(p50(b))
                second.append(p50(a))
    common.heading(f"{args.rounds} rounds of {args.repeat}")
    common.row("A: with silent probes, p50", first, "us")
    common.row("B: without probes, p50", other, "us")
    common.row("A again, p50", second, "us")
    same = [y - x for x, y in zip(first, second)]
    with_probes = [statistics.mean(pair) - b for *pair, b in zip(first, second, other)]
    common.row("A again - A: what time alone does", same, "us", 2)
    common.row("mean of A - B: what the probes cost", with_probes, "us", 2)


if __name__ == "__main__":
    main()
