"""Attaching to a model against opening its file: `ipc-cache attach` (connect, verify, map) and safetensors' safe_open, in turn."""
import time

import common
import models
from safetensors import safe_open


def open_times(path, repeat):
    times = []
    for _ in range(repeat):
        begin = time.perf_counter_ns()
        with safe_open(path, framework="np"):
            times.append((time.perf_counter_ns() - begin) / 1000)
    return times


def main():
    args = common.arguments(__doc__, model="", repeat=1000)
    folder = args.model or models.minilm() or exit("give --model DIR: the example model could not be fetched")
    path = f"{folder}/model.safetensors"
    ours, theirs = [], []
    with common.broker(args.build) as broker:
        broker.run("load", folder, "--name", "bench")
        for _ in range(args.rounds):
            ours.append(broker.run("attach", "bench", "--repeat", str(args.repeat))["times_us"]["total"])
            opened = open_times(path, args.repeat)
            theirs.append({"p50": common.percentile(opened, 50), "p99": common.percentile(opened, 99)})
    common.heading(f"{args.rounds} rounds of {args.repeat}")
    for name in "p50", "p99":
        common.row(f"attach {name}", [o[name] for o in ours], "us")
        common.row(f"safe_open {name}", [t[name] for t in theirs], "us")
        common.row(f"safe_open / attach, {name}", [t[name] / o[name] for o, t in zip(ours, theirs)], "x")


if __name__ == "__main__":
    main()
