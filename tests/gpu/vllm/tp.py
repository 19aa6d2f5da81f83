"""Two cards, tensor_parallel_size=2: published by an engine that is killed, so that only the broker holds both ranks' weights.

An engine whose cards come in the other order has rank 0 on the card that holds rank 1's weights. It is refused and told so, in
each rank, before anything is mapped; with on_miss=publish it publishes its own layout beside the other.
"""

import os
import time

import models
import pagecache
from engines import Failed, running
from starts import steps
from trial import PROMPTS, SHARE, compiled, measured, mib, phases, told

# Without a network, and without NVLink multicast.
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0", "VLLM_HOST_IP": "127.0.0.1",
               "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def tp(t):
    if not t.options.cpu and len(t.card.uuids) < 2:
        t.bar("two cards", False, f"not run: {len(t.card.uuids)} found")
        return
    if "dense" in t.options.kinds.split(","):
        t.attempt("two cards, dense", model, "dense, two cards", models.make(t.options.models / "dense", "dense"), SHARE)
    t.attempt("two cards, big", model, "big, two cards", t.big_made(), t.memory)


def model(t, what, folder, memory):
    more = {**memory, "tensor_parallel_size": 2, "environment": environment(t)}
    if t.options.no_custom_all_reduce:
        more["disable_custom_all_reduce"] = True
    name = what.split(",")[0] + "-two"
    t.broker.evict_all()
    if t.attempt(f"{what}: published", published, what, name, folder, more) is None:
        return
    if name.startswith("big"):
        t.attempt(f"{what}: page cache dropped", cold, what, name, folder, more)
    expected = t.attempt(f"{what}: strict", strict, what, name, folder, more)
    t.attempt(f"{what}: restarted", restarted, what, name, folder, more, expected)
    if t.card.present:
        t.attempt(f"{what}: cards in the other order", swapped, what, name, folder, more, expected)
    t.broker.evict_all()  # what comes next publishes for one card


def environment(t):
    cores = sorted(os.sched_getaffinity(0))
    return {**ENVIRONMENT, **({"VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}"} if t.options.cpu else {})}


def loads(engine):
    return [rank["loads"][0] for rank in engine.call("state")]


def each(t, before):
    """Bytes in use on every card beyond `before`, when they have settled."""
    t.card.settled()
    return [now - then for now, then in zip(t.card.each(), before)]


def killed(t, what, engine):
    """SIGKILL to an engine that generates: none of its processes is left, the workers' included."""
    mine = set(engine.processes())
    workers = {rank["pid"] for rank in engine.call("state")}
    engine.ask("generate", prompts=PROMPTS, tokens=256)
    time.sleep(0.3)
    engine.kill()
    left = (mine | workers) & running().keys()
    t.bar(f"{what}: SIGKILL ends every process of the engine", not left,
          f"{len(mine | workers)} processes, workers {sorted(workers)}, left {sorted(left) or 'none'}", "none left")


def published(t, what, name, folder, more):
    t.card.settled()
    before = t.card.each()
    with t.attached(f"{name}-publish", folder, {"on_miss": "publish"}, **more) as engine:
        said, ranks = engine.result(), loads(engine)
        killed(t, f"{what}, publisher", engine)
    alone, found = each(t, before), t.broker.idle()
    held = {m["key"]["device"]: 0 for m in found}
    for m in found:
        held[m["key"]["device"]] += m["bytes"]
    t.bar(f"{what}: published by an engine, which is killed", sorted(m["key"]["tensor_parallel_rank"] for m in found) == ["0", "1"]
          and not any(m["leases"] for m in found), f"engine start {said['start_s']:.2f} s; " + "; ".join(
              f"rank {r['rank']} {mib(r['shared'])}, {phases(r)}" for r in ranks), "ranks 0 and 1, no lease")
    listed = t.card.query("--query-compute-apps", "pid,used_memory")
    weights = [held.get(uuid, 0) for uuid in t.card.uuids]
    t.bar(f"{what}: VRAM with the broker alone, on each card", not t.card.present or (alone == weights and listed == ""),
          f"{', '.join(map(mib, alone)) or 'no card'} in use, weights {', '.join(map(mib, weights or held.values()))}; "
          f"processes listed: {listed or 'none'}", "equal, none")
    return held


def cold(t, what, name, folder, more):
    left, size = pagecache.drop(folder)
    with t.ordinary(f"{name}-cold", folder, **more) as engine:
        said = measured(engine)
        engine.kill()
    t.card.settled()
    t.bar(f"{what}: ordinary, page cache dropped ({mib(left)} of {mib(size)} left in it)", None, told(said))


def strict(t, what, name, folder, more):
    """Tokens and log-probabilities, one prompt at a time; what an attached start takes in each rank."""
    _, _, expected, ranks = t.strict(what, name, folder, **more)
    t.bar(f"{what}: load_model in each rank", None, "; ".join(
        f"rank {r['rank']} {sum(r['phases'].values()):.0f} ms ({phases(r)})" for r in ranks))
    return expected


def restarted(t, what, name, folder, more, expected):
    """Killed while it generates, and started again."""
    with t.attached(f"{name}-killed", folder, **more) as engine:
        engine.result()
        killed(t, what, engine)
    with t.attached(f"{name}-again", folder, **more) as engine:
        said = measured(engine)
        steps_s = steps(engine.text(), said)
        same = engine.call("generate", prompts=PROMPTS) == expected
        engine.kill()
    t.card.settled()
    t.bar(f"{what}: started again after SIGKILL", None if t.options.cpu or expected is None else same, f"{told(said)}; tokens and "
          f"log-probabilities {'equal' if same else 'differ'}; {'; '.join(compiled(engine))}", "equal")
    t.bar(f"{what}: where that start goes, seconds from LLM()", None, ", ".join(f"{n} {s:.2f}" for n, s in steps_s.items()))


def swapped(t, what, name, folder, more, expected):
    other = {**more, "environment": {**more["environment"], "CUDA_VISIBLE_DEVICES": "1,0"}}
    before = t.broker.models()
    job = t.attached(f"{name}-swapped", folder, **other)
    with job:
        try:
            job.result()
            said = "attached"
        except Failed as error:
            said = f"{error}\n{job.text()}"
        job.kill()
    t.card.settled()
    lines = [line for line in said.splitlines() if "NoWeights" in line and "differs in 1 field" in line
             and ("device: expected GPU-" in line or "tensor_parallel_rank: expected" in line)]
    untouched = [m["key_id"] for m in before] == [m["key_id"] for m in t.broker.idle() if not m["leases"]]
    t.bar(f"{what}: CUDA_VISIBLE_DEVICES=1,0 is refused by the field that differs", bool(lines) and untouched,
          (lines or said.splitlines())[0][-400:], "refused, nothing leased")
    with t.attached(f"{name}-swapped-publish", folder, {"on_miss": "publish"}, **other) as engine:
        start, hows = measured(engine), [load["how"] for load in loads(engine)]
        same = engine.call("generate", prompts=PROMPTS) == expected
        engine.kill()
    t.card.settled()
    places = sorted((m["key"]["tensor_parallel_rank"], m["key"]["device"]) for m in t.broker.models())
    t.bar(f"{what}: the same with on_miss=publish: its ranks beside the others, equal", same and hows == ["published"] * 2
          and places == sorted((rank, uuid) for rank in "01" for uuid in t.card.uuids[:2]),
          f"{told(start)}; {hows}; {len(places)} resident; tokens and log-probabilities {'equal' if same else 'differ'}",
          "published, equal")
    with t.attached(f"{name}-swapped-attached", folder, **other) as engine:
        start, hows = measured(engine), [load["how"] for load in loads(engine)]
        same = engine.call("generate", prompts=PROMPTS) == expected
        engine.kill()
    t.card.settled()
    t.bar(f"{what}: and attached to those", same and hows == ["attached"] * 2,
          f"{told(start)}; {hows}; tokens and log-probabilities {'equal' if same else 'differ'}", "attached, equal")
