"""A model of an 8B's shape: published, compared, mapped, its memory with one engine and two; lives.py has its engines' ends."""

import statistics

import lives
from starts import load_bars, rows, start
from trial import MIB, PROMPTS, mib, phases


def big_published(t, folder, memory):
    t.broker.evict_all()
    base = t.card.settled()
    said = t.published("big-publish", folder, **memory)
    alone = t.card.settled() - base
    model = t.broker.models()[0]
    size = model["bytes"]
    t.figures["big_publish"] = said
    t.bar("big: published", None, f"{size / 1e9:.2f} GB in {model['segments']} segments, {said['took_s']:.2f} s; "
        + phases(said["loads"][0]))
    limit = size * 1.1 + 1024 * MIB
    t.bar("big: most VRAM in use while publishing", not t.card.present or said["peak"] <= limit,
        f"{mib(said['peak'])} for {mib(size)} of weights", f"{mib(limit)}")
    listed = t.card.query("--query-compute-apps", "pid,used_memory")
    t.bar("big: VRAM with the broker alone", not t.card.present or (alone == size and listed == ""),
        f"{mib(alone)} in use, weights {mib(size)}; processes listed: {listed or 'none'}", "equal, none")
    return size


def big_strict(t, folder, memory, _size):
    cold, _, t.figures["big_tokens"], _ = t.strict("big", "big", folder, **memory)
    t.figures["big_blocks"] = cold["blocks"]


def big_mapped(t, folder, _, size):
    """Without an engine: what connecting, mapping and making views cost, the first time and again."""
    resident = t.broker.models()[0]["key_id"]
    with t.host.fork("big-mapped", "job_more.attach", {}, directory=t.broker.directory, model=resident, count=6) as job:
        rows_ms, fast = job.result()
    first, rest = rows_ms[0], [statistics.median(column) for column in zip(*rows_ms[1:])]
    t.bar("big: attached by a process with a CUDA context and no engine", None, "connect, map, views in ms: "
        f"{[round(x, 2) for x in first]} at first, median {[round(x, 2) for x in rest]} later; {mib(size)}; views "
        f"{'in one call' if fast else 'one by one'}")


def big_restarts(t, folder, memory, _):
    """Several engines of one process, as programs that restart their engine have it: all imports are done then."""
    with t.host.fork("big-restarts", "job_more.restarts", {"VLLM_PLUGINS": "ipc_cache"}, count=4,
                   options={"model": str(folder), **t.broker_options(), **memory}) as job:
        starts = job.result()
        lines = [line.rsplit("(", 1)[1].rstrip(")") for line in job.text().splitlines() if "ipc_cache: attached" in line]
    t.card.settled()
    load_bars(t, "big", [{n: float(ms) for n, ms in (part.split(" ") for part in line.split(", "))} for line in lines[1:]],
               ", further engines of one process")
    later = statistics.median(starts[1:])
    t.bar("big: engine start, attached, eager, in a process that has started one before", later <= 2.2,
        f"median {later:.2f} s of {', '.join(f'{s:.2f}' for s in starts[1:])}; the first {starts[0]:.2f} s", "2.2 s")


SWITCHES = {
    "nothing turned off": {}, "garbage collector as it is": {"IPC_CACHE_GC_FREEZE": "0"},
    "kernels are loaded when they are called": {"IPC_CACHE_PREFETCH": "0"},
    "what a reload would need is noted": {"IPC_CACHE_SKIP_RELOAD": "0"},
    "VLLM_ENABLE_STARTUP_PLAN=1, the first records": {"VLLM_ENABLE_STARTUP_PLAN": "1"}}


def big_switches(t, folder, memory, _):
    """What can be turned off in an engine whose modules are preloaded, in turn, in interleaved rounds; and one start's profile."""
    found = {name: [] for name in SWITCHES}
    try:
        for i in range(t.options.rounds):
            for name, environment in SWITCHES.items():
                found[name].append(start(t, folder, "switch", "attached", i, {**memory, "environment": environment}))
    finally:  # what there is, is told
        for name, starts in found.items():
            if starts:
                rows(t, f"big, attached: {name}", starts)
        t.figures["big_switches"] = found
    trace = str(t.options.folder.resolve() / "start-profile.txt")
    with t.host.fork("big-profiled", "job.serve", {"VLLM_PLUGINS": "ipc_cache", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}, trace=trace,
                     options={"model": str(folder), **t.broker_options(), **memory}) as engine:
        t.bar("big, attached: engine in the caller's process, profiled", None, f"{engine.result()['start_s']:.2f} s; {trace}")
        engine.kill()
    t.card.settled()


def big_two(t, folder, memory, size):
    base = t.card.settled()
    with t.attached("big-two-a", folder, **memory) as one:
        one.result()
        single = t.card.used()
        with t.attached("big-two-b", folder, **memory) as two:
            two.result()
            both = t.card.used()
            one.call("generate", prompts=PROMPTS[:2])
            two.call("generate", prompts=PROMPTS[:2])
            leases = t.broker.models()[0]["leases"]
    t.card.settled()
    own = single - base
    t.bar("big: two engines on one copy", leases == 2 and (not t.card.present or abs(both - base - 2 * own) <= 64 * MIB),
        f"{mib(base)} without an engine, {mib(single)} with one, {mib(both)} with two: {mib(own)} and {mib(both - single)} beside "
        f"{mib(size)} of weights", "each adds what it needs beside the weights")


PARTS = {"strict": big_strict, "mapped": big_mapped, "restarts": big_restarts, "switches": big_switches, "two": big_two,
         "accounted": lives.accounted, "killed": lives.engine_killed, "broker": lives.broker_killed}


def big(t):
    folder = t.big_made()
    size = t.attempt("big: publish", big_published, folder, t.memory)
    if size is None:
        return
    for name, part in PARTS.items():
        if name in t.options.parts.split(","):
            t.attempt(f"big: {name}", part, folder, t.memory, size)
