"""A model of an 8B's shape: times, phases and memory, engines that are killed, a broker that is, and vLLM's own weight cache."""

import statistics
import tempfile
import time

from trial import MIB, PROMPTS, mib, phases

MEMORY = {"gpu_memory_utilization": 0.3}


def start_line(starts):
    return f"median {statistics.median(starts):.2f} s of {', '.join(f'{s:.2f}' for s in starts)}"


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
    with t.host.fork("big-mapped", "attach", {}, directory=t.broker.directory, model=resident, count=6) as job:
        rows_ms, fast = job.result()
    first, rest = rows_ms[0], [statistics.median(column) for column in zip(*rows_ms[1:])]
    t.bar("big: attached by a process with a CUDA context and no engine", None, "connect, map, views in ms: "
        f"{[round(x, 2) for x in first]} at first, median {[round(x, 2) for x in rest]} later; {mib(size)}; views "
        f"{'in one call' if fast else 'one by one'}")


def big_restarts(t, folder, memory, _):
    """Several engines of one process, as programs that restart their engine have it: all imports are done then."""
    with t.host.fork("big-restarts", "restarts", {"VLLM_PLUGINS": "ipc_cache"}, count=4,
                   options={"model": str(folder), **t.broker_options(), **memory}) as job:
        starts = job.result()
        lines = [line.rsplit("(", 1)[1].rstrip(")") for line in job.text().splitlines() if "ipc_cache: attached" in line]
    t.card.settled()
    big_phases(t, [{n: float(ms) for n, ms in (part.split(" ") for part in line.split(", "))} for line in lines[1:]],
               ", further engines of one process")
    later = statistics.median(starts[1:])
    t.bar("big: engine start, attached, eager, in a process that has started one before", later <= 2.2,
        f"median {later:.2f} s of {', '.join(f'{s:.2f}' for s in starts[1:])}; the first {starts[0]:.2f} s", "2.2 s")


def big_phases(t, loads, where):
    """loads: phases by name, of several loads."""
    bound = [sum(load.get(phase, 0) for phase in ("connect", "map", "bind")) for load in loads]
    whole = [sum(load.values()) for load in loads]
    each = {name: [round(load.get(name, 0), 1) for load in loads] for name in dict.fromkeys(n for load in loads for n in load)}
    t.bar(f"big: connect to last tensor bound (without the skeleton){where}", statistics.median(bound) <= 10,
        f"median {statistics.median(bound):.1f} ms of {[round(b, 1) for b in bound]}", "10 ms")
    t.bar(f"big: load_model, whole{where}", statistics.median(whole) <= 250,
        f"median {statistics.median(whole):.0f} ms of {[round(w) for w in whole]}", "250 ms")
    t.bar(f"big: its phases in ms{where}", None, f"{each}")


def big_attached(t, folder, memory, _):
    starts, loads, took, init, first = [], [], [], [], []
    for i in range(t.options.rounds):
        with t.attached(f"big-attached-{i}", folder, **memory) as engine:
            starts.append(engine.result()["start_s"])
            first.append(engine.call("timed", prompts=PROMPTS[:1], tokens=1))
            loads.append(engine.call("state")[0]["loads"][0])
            took.append(engine.said(r"Model loading took .* memory and ([0-9.]+) seconds"))
            init.append(engine.said(r"init engine .* took ([0-9.]+)"))
            engine.kill()
        t.card.settled()
    t.figures["big_attached"] = {"start_s": starts, "loads": loads, "model_loading_s": took, "init_s": init, "first_token_s": first}
    big_phases(t, [load["phases"] for load in loads], "")
    t.bar("big: engine start, attached, eager", statistics.median(starts) <= 2.2, start_line(starts), "2.2 s")
    t.bar("big: vLLM's own lines, attached", None, f"Model loading took {took} s; init engine {init} s; first token after "
          f"{first[0]:.3f} s")


def big_switches(t, folder, memory, _):
    """The same with one thing changed."""
    for name, environment, more in (
        ("garbage collector as it is", {"IPC_CACHE_GC_FREEZE": "0"}, {}),
        ("Triton hashes when it needs to", {"IPC_CACHE_PREFETCH": "0"}, {}),
        ("VLLM_ENABLE_STARTUP_PLAN=1, recording", {"VLLM_ENABLE_STARTUP_PLAN": "1"}, {}),
        ("VLLM_ENABLE_STARTUP_PLAN=1, applied", {"VLLM_ENABLE_STARTUP_PLAN": "1"}, {}),
        ("engine in the caller's process, profiled", {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}, {}),
    ):
        trace = str(t.options.folder.resolve() / "start-profile.txt") if "profiled" in name else None
        job = t.host.fork("big-switch", "serve", {"VLLM_PLUGINS": "ipc_cache", **environment}, trace=trace,
                        options={"model": str(folder), **t.broker_options(), **memory, **more})
        with job as engine:
            said = engine.result()
            t.bar(f"big, attached: {name}", None, f"engine start {said['start_s']:.2f} s, {said['blocks']} blocks; model loading "
                f"{engine.said(r'Model loading took .* memory and ([0-9.]+) seconds')} s, "
                f"init {engine.said(r'init engine .* took ([0-9.]+)')} s")
            engine.kill()
        t.card.settled()


def big_ordinary(t, folder, memory, _):
    starts, weights, took, init = [], [], [], []
    for i in range(2):
        with t.ordinary(f"big-ordinary-{i}", folder, **memory) as engine:
            starts.append(engine.result()["start_s"])
            weights.append(engine.said(r"Loading weights took ([0-9.]+) seconds"))
            took.append(engine.said(r"Model loading took .* memory and ([0-9.]+) seconds"))
            init.append(engine.said(r"init engine .* took ([0-9.]+)"))
            engine.kill()
        t.card.settled()
    t.bar("big: ordinary vLLM, page cache warm", None, f"engine start {start_line(starts)}; loading weights {weights} s, model "
          f"loading {took} s, init engine {init} s")


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


def big_accounted(t, folder, memory, _size):
    """Blocks of an engine that publishes itself, and of one that waits for a publisher; `strict` has those of the others."""
    t.broker.evict_all()
    t.card.settled()
    with t.attached("big-publishes", folder, {"on_miss": "publish"}, **memory) as engine:
        first = engine.result()["blocks"]
        engine.kill()
    t.broker.evict_all()
    t.card.settled()
    waiting = t.attached("big-waits", folder, {"wait": 120}, **memory)
    with waiting:
        time.sleep(5)  # it is at its first look by then
        t.published("big-publish-late", folder, **memory)
        second = waiting.result()
        generated = waiting.call("generate", prompts=PROMPTS)
        waiting.kill()
    t.card.settled()
    expected = t.figures.get("big_blocks", first)
    close = all(abs(blocks - expected) * second["block_bytes"] <= 8 * MIB for blocks in (first, second["blocks"]))
    t.bar("big: KV-cache blocks of an engine that publishes, and of one that waited", None if t.options.cpu else close,
        f"{first} and {second['blocks']}, an ordinary load {expected}", "within 2, or 8 MiB")
    if "big_tokens" in t.figures:
        same = generated == t.figures["big_tokens"]
        t.bar("big: tokens of the one that waited", same, "equal" if same else "different", "equal")


def big_engine_killed(t, folder, memory, _):
    with t.attached("big-killed", folder, **memory) as engine:
        engine.result()
        engine.ask("generate", prompts=PROMPTS, tokens=512)
        time.sleep(1)
        begin = time.perf_counter()
        engine.kill()
    with t.attached("big-restarted", folder, **memory) as engine:
        engine.result()
        engine.call("generate", prompts=PROMPTS[:1], tokens=1)
        took = time.perf_counter() - begin
    t.card.settled()
    t.bar("big: SIGKILL under load to the restarted engine's first token", None, f"{took:.2f} s, vLLM imported before")


def big_broker_killed(t, folder, memory, _):
    expected = t.figures.get("big_tokens")
    with t.attached("big-broker-killed", folder, **memory) as engine:
        engine.result()
        engine.ask("generate", prompts=PROMPTS, tokens=16)
        t.broker.kill()
        said = engine.result()
        again = engine.call("generate", prompts=PROMPTS)
    t.start_broker()
    good = said == again and expected in (None, said)
    t.bar("big: broker SIGKILLed while an engine generates", good, f"the engine goes on, tokens and log-probabilities "
        f"{'equal' if good else 'differ'}, then and in the next request", "equal")


PARTS = {"strict": big_strict, "mapped": big_mapped, "attached": big_attached, "restarts": big_restarts, "switches": big_switches,
         "two": big_two, "accounted": big_accounted, "ordinary": big_ordinary, "killed": big_engine_killed,
         "broker": big_broker_killed}


def big(t):
    folder = t.big_made()
    memory = MEMORY if not t.options.cpu else {}
    size = t.attempt("big: publish", big_published, folder, memory)
    if size is None:
        return
    for name, part in PARTS.items():
        if name in t.options.parts.split(","):
            t.attempt(f"big: {name}", part, folder, memory, size)


def own(t):
    """The daemon of vLLM's own weight cache, and an engine that attaches to it."""
    folder = t.big_made()
    sockets = tempfile.mkdtemp(prefix="vllm-own-")
    base = t.card.settled()
    with t.host.fork("own-daemon", "weight_cache_daemon", {"VLLM_PLUGINS": ""}, sockets=sockets,
                   options={"model": str(folder), **MEMORY}) as daemon:
        took = daemon.result()["took_s"]
        held = t.card.settled() - base
        with t.host.fork("own-engine", "serve", {"VLLM_PLUGINS": ""}, options={
                "model": str(folder), "load_format": "ipc_cache", "model_loader_extra_config": {"socket_dir": sockets},
                **MEMORY}) as engine:
            said = engine.result()
            engine.call("generate", prompts=PROMPTS[:1])
            t.bar("beside it: vLLM's own weight cache, big, eager", None, f"engine start {said['start_s']:.2f} s, model loading "
                f"{engine.said(r'Model loading took .* memory and ([0-9.]+) seconds')} s, {said['blocks']} blocks; its daemon took "
                f"{took:.1f} s, vLLM imported before, and holds {mib(held)} of VRAM")
            engine.kill()
        daemon.kill()
    t.card.settled()
