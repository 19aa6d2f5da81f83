"""Small models: the strict comparison, what must not be mistaken for each other, CUDA graphs, what is refused by name."""

import lives
import models
from trial import PROMPTS, SHARE, phases


def small(t):
    for kind in t.options.kinds.split(","):
        t.attempt(kind, one_small, kind)


def one_small(t, kind):
    folder = models.make(t.options.models / kind, kind)
    said = t.published(f"{kind}-publish", folder, **SHARE)
    t.bar(f"{kind}: published, publisher killed", [m["leases"] for m in t.broker.idle() if m["key"]["model"] == str(folder)] == [0],
        f"{said['took_s']:.2f} s; {phases(said['loads'][0])}", "resident, no lease")
    cold, _, t.figures[kind], _ = t.strict(kind, kind, folder, **SHARE)
    t.figures[f"{kind}_blocks"] = cold["blocks"]


def accounted(t):
    """As big's part of that name, with the small dense model: where there is no time for a large one."""
    lives.accounted(t, models.make(t.options.models / "dense", "dense"), SHARE, None, "dense")


def refused(t):
    """What vLLM before 0.30 does not let be shared: refused by the method's name, with the way out."""
    if not t.old:
        t.bar("refused by version", None, "not run: this version refuses none of these models")
        return
    for kind in ("moe",) if t.options.cpu else ("fp8", "moe"):  # the CPU has no kernels for block FP8
        t.attempt(f"{kind}: refused", one_refused, kind)


def one_refused(t, kind):
    folder = models.make(t.options.models / kind, kind)
    said = t.refusal(f"{kind}-refused", folder, {"on_miss": "publish"}, **SHARE)
    line = next((line for line in said.splitlines() if "cannot be rebuilt" in line), said.splitlines()[0])
    there = [m for m in t.broker.models() if m["key"]["model"] == str(folder)]
    t.bar(f"{kind}: publishing is refused by name, nothing is resident", "before vLLM 0.30" in line and "--load-format auto" in line
          and not there, line[:300], "by name")


def controls(t):
    for kind, change in (("dense", models.zero_a_norm), ("moe", models.swap_experts)):
        if kind in t.options.kinds.split(","):
            t.attempt(f"control {change.__name__}", control, kind, change)


def control(t, kind, change):
    name = change.__name__.replace("_", " ")
    folder = models.altered(models.make(t.options.models / kind, kind), t.options.models / f"{kind}-{change.__name__}", change)
    with t.ordinary(f"{kind}-{change.__name__}", folder, **SHARE) as engine:
        engine.result()
        said = engine.call("generate", prompts=PROMPTS)
    t.card.settled()
    if kind in t.figures:
        changed = sum(a[0] != b[0] for a, b in zip(said, t.figures[kind]))
        t.bar(f"{kind}, {name}: other tokens", changed > 0, f"{changed} of {len(PROMPTS)} prompts", "some")
    resident = next(m for m in t.broker.models() if m["key"]["model"] == str(t.options.models / kind))
    said = t.refusal(f"{kind}-{change.__name__}-attach", folder, {"model": resident["key_id"], "verify": "hash"})
    t.bar(f"{kind}, {name}: attaching by name is rejected by content", "model.safetensors" in said and "Mismatch" in said,
        said.splitlines()[0][:300], "rejected")


def graphs(t):
    folder = models.make(t.options.models / "dense", "dense")
    t.resident("dense", folder, **SHARE)
    found = t.strict("dense, CUDA graphs", "graphs", folder, environment={"VLLM_PLUGINS": "ipc_cache"}, enforce_eager=False, **SHARE)
    t.bar("dense, CUDA graphs: compiled", None, f"ordinary: {found[0]['compiled']}; attached: {found[1]['compiled']}")
