"""The large model's starts, ordinary with the page cache dropped and warm, and attached; eager and with CUDA graphs."""

import datetime
import re
import statistics

import pagecache
from trial import compiled, measured, mib, spread

TOLD = {"weights_s": "Loading weights took", "model_s": "Model loading took", "init_s": "init engine", "start_s": "engine start",
        "first_s": "LLM() to the first token"}
WAYS = {"cold": "ordinary, page cache dropped", "warm": "ordinary, page cache warm", "attached": "attached"}
MILESTONES = {
    "engine core begins": "Initializing a V1 LLM engine", "ranks are set up": "rank 0 in world size",
    "model loading begins": "Starting to load model|Loading model from scratch", "weights attached": "ipc_cache: attached",
    "weights loaded": "Loading weights took", "model loaded": "Model loading took", "compiled": "compile took .* s in total",
    "memory profiled": "Available KV cache memory", "graphs captured": "Graph capturing finished",
    "engine core ready": "init engine .* took"}


def cold(t):
    """Rounds in which every way comes once, so that what the machine does meanwhile meets all of them."""
    folder = t.big_made()
    t.resident("big", folder, **t.memory)
    for mode in t.options.modes.split(","):
        t.attempt(f"big, {mode}: starts", rounds, folder, mode)


def rounds(t, folder, mode):
    more = {**t.memory, "enforce_eager": mode == "eager"}
    ways = [way for way in WAYS if way in t.options.ways.split(",")]
    if mode == "graphs":  # what is compiled is kept, and who compiles it is another question: compiled.py
        for way in {"attached" if way == "attached" else "warm" for way in ways}:
            start(t, folder, mode, way, "first", more)
    found = {way: [] for way in ways}
    try:
        for i in range(t.options.rounds):
            for way in ways:
                if way != "cold" or i < t.options.cold_rounds:
                    found[way].append(start(t, folder, mode, way, i, more))
    finally:  # what there is, is told
        tell(t, mode, found)


def tell(t, mode, found):
    for way in found:
        if found[way]:
            rows(t, f"big, {mode}: {WAYS[way]}", found[way])
    if found.get("attached"):
        load_bars(t, f"big, {mode}", [said["load"]["phases"] for said in found["attached"]], "")
        t.bar(f"big, {mode}: a plain Python loop in each of these workers afterwards", None,
              f"{[round(said['loop_ms'], 2) for said in found['attached']]} ms")
        middle = statistics.median(said["start_s"] for said in found["attached"])
        t.bar(f"big, {mode}: engine start, attached", middle <= 2.2 if mode == "eager" else None, f"median {middle:.2f} s",
              "2.2 s" if mode == "eager" else "")
    t.figures[f"big_starts_{mode}"] = found


def start(t, folder, mode, way, number, more):
    """One start, and where its time goes."""
    name = f"big-{mode}-{way}-{number}"
    if way == "cold":
        left, size = pagecache.drop(folder)
        if left > size // 100:
            t.bar(f"{name}: page cache dropped", False, f"{mib(left)} of {mib(size)} are still there", "1 %")
    with t.attached(name, folder, **more) if way == "attached" else t.ordinary(name, folder, **more) as engine:
        said = measured(engine)
        if way == "attached":
            state = engine.call("state")[0]
            said["load"], said["loop_ms"] = state["loads"][0], state["loop_ms"]
        said["steps"] = steps(engine.text(), said)
        told = f"{name}: {said['start_s']:.2f} s; {'; '.join(compiled(engine))}"
        engine.kill()
    t.say(told)
    t.card.settled()
    return said


def rows(t, what, found):
    """found: measured() of several starts, with steps()."""
    lines = [f"{text} {spread([said[key] for said in found])} s" for key, text in TOLD.items()
             if any(said[key] is not None for said in found)]
    t.bar(f"{what}, {len(found)} starts, minimum / median / maximum", None, f"{'; '.join(lines)}; {found[0]['blocks']} blocks")
    t.bar(f"{what}, where the first start goes, seconds from LLM()", None, ", ".join(
        f"{name} {seconds:.2f}" for name, seconds in found[0]["steps"].items()))


def steps(text, said):
    """Seconds from LLM() to each line of vLLM's that marks a step, in the order of time."""
    found = {}
    for name, pattern in MILESTONES.items():
        line = re.search(rf"(\d{{4}}-\d\d-\d\dT[0-9:.]+) \[[^\n]*({pattern})", text)
        if line:
            found[name] = datetime.datetime.fromisoformat(line.group(1)).timestamp() - said["begun"]
    found["LLM() returns"] = said["start_s"]
    return dict(sorted(found.items(), key=lambda step: step[1]))


def load_bars(t, what, loads, where):
    """loads: phases of the plugin by name, of several loads."""
    bound = [sum(load.get(phase, 0) for phase in ("connect", "map", "bind")) for load in loads]
    whole = [sum(load.values()) for load in loads]
    each = {name: [round(load.get(name, 0), 1) for load in loads] for name in dict.fromkeys(n for load in loads for n in load)}
    t.bar(f"{what}: connect to last tensor bound (without the skeleton){where}", statistics.median(bound) <= 10,
          f"median {statistics.median(bound):.1f} ms of {[round(b, 1) for b in bound]}", "10 ms")
    t.bar(f"{what}: load_model, whole{where}", statistics.median(whole) <= 250,
          f"median {statistics.median(whole):.0f} ms of {[round(w) for w in whole]}", "250 ms")
    t.bar(f"{what}: its phases in ms{where}", None, f"{each}")
