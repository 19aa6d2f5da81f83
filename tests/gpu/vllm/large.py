"""54 GiB of weights in a model with a 27B's layers: published, and attached to.

The checkpoint lies in memory (a tmpfs), since a disk may not hold it and would take minutes; vLLM reads it from there as from a
warm page cache. It is deleted at the end.
"""

import os
import shutil
import statistics
import time

import bigmodels
from starts import load_bars, rows, steps
from trial import MIB, measured, mib, phases


def large(t):
    config = bigmodels.of_size(t.options.large_gib)
    size, place = bigmodels.size(config), t.options.large_folder
    free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
    if free < size + 256 * MIB:
        t.bar("large: published", False, f"not run: {place} has {mib(free)} free, and the checkpoint takes {mib(size)}")
        return
    t.broker.evict_all()
    folder = place / f"ipc-cache-large-{os.getpid()}"
    try:
        begin = time.monotonic()
        bigmodels.make(folder, config)
        t.say(f"{mib(size)} written to {folder} in {time.monotonic() - begin:.1f} s")
        memory = {} if t.options.cpu else {"gpu_memory_utilization": 0.55}
        if t.attempt("large: published", published, folder, memory, size) is not None:
            t.attempt("large: strict", strict, folder, memory)
            t.attempt("large: mapped", mapped)
            t.attempt("large: attached", attached, folder, memory)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        t.broker.evict_all()


def published(t, folder, memory, size):
    base = t.card.settled()
    said = t.published("large-publish", folder, **memory)
    alone = t.card.settled() - base
    model = t.broker.models()[0]
    t.figures["large_publish"] = said
    t.bar("large: published", None, f"{size / (1 << 30):.2f} GiB of checkpoint, {mib(model['bytes'])} in {model['segments']} "
          f"segments, {model['tensors']} tensors, {said['took_s']:.2f} s; {phases(said['loads'][0])}")
    limit = model["bytes"] * 1.1 + 1024 * MIB
    t.bar("large: most VRAM in use while publishing", not t.card.present or said["peak"] <= limit,
          f"{mib(said['peak'])} for {mib(model['bytes'])} of weights", mib(limit))
    listed = t.card.query("--query-compute-apps", "pid,used_memory")
    t.bar("large: VRAM with the broker alone", not t.card.present or (alone == model["bytes"] and listed == ""),
          f"{mib(alone)} in use, weights {mib(model['bytes'])}; processes listed: {listed or 'none'}", "equal, none")
    return model


def strict(t, folder, memory):
    t.strict("large", "large", folder, **memory)


def mapped(t):
    resident = t.broker.models()[0]["key_id"]
    with t.host.fork("large-mapped", "job_more.attach", {}, directory=t.broker.directory, model=resident, count=6) as job:
        times, _ = job.result()
    later = [statistics.median(column) for column in zip(*times[1:])]
    t.bar("large: attached by a process with a CUDA context and no engine", None, "connect, map, views in ms: "
          f"{[round(x, 2) for x in times[0]]} at first, median {[round(x, 2) for x in later]} later")


def attached(t, folder, memory):
    found = []
    for i in range(t.options.rounds):
        with t.attached(f"large-attached-{i}", folder, **memory) as engine:
            said = measured(engine)
            said["load"] = engine.call("state")[0]["loads"][0]
            said["steps"] = steps(engine.text(), said)
            found.append(said)
            engine.kill()
        t.card.settled()
    t.figures["large_attached"] = found
    load_bars(t, "large", [said["load"]["phases"] for said in found], "")
    rows(t, "large: attached, eager", found)
